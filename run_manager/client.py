"""A client as the command line starts it: real clock, threads and HTTP around `run_manager/agent.py`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data_providers.protocol import DataProvider
from run_manager.agent import Agent, ClientEnd
from run_manager.backoff import DEFAULT_BOUND_S, Patience, SystemClock, system_jitter
from run_manager.coordinator_client import HttpCoordinatorClient
from run_manager.key import ClientKey, load_or_create_key
from run_manager.progress import Observer, ignore
from run_manager.run_manager import DataRequest, Equipment
from run_manager.session import Admission
from run_manager.trainers.registry import TRAINERS, open_trainer
from run_manager.worker_thread import WorkerThread
from state.errors import InvalidInput
from state.messages import Capabilities


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a user says of a client.

    Attributes:
        url: the coordinator's base URL.
        trainer: one of `TRAINERS`.
        key_file: keeps the client's identity between starts; None for a fresh one.
        invitation: the code of an invitation, for a run that needs one.
        batches_per_round: the client's share of the work, relative to the others'.
        reconnect_bound_s: for how long a coordinator that does not answer is tried again.
        verify: whether to verify TLS certificates, or a file with the authorities to trust.
    """

    url: str
    trainer: str = "numpy"
    key_file: Path | None = None
    invitation: str | None = None
    batches_per_round: int = 1
    reconnect_bound_s: float = DEFAULT_BOUND_S
    verify: bool | str = True


async def run_client(
    options: ClientOptions,
    open_provider: Callable[[DataRequest], Awaitable[DataProvider]],
    observer: Observer = ignore,
    started: Callable[[Agent], None] = lambda agent: None,
) -> ClientEnd:
    """Takes part in the run until it is finished, or the client has withdrawn; cancel it to stop at once.

    Args:
        options: what the user said.
        open_provider: opens the run's data for this client.
        observer: told what happens.
        started: is given the agent, whose `finish_and_withdraw` ends the client in an orderly way.

    Raises:
        EpochalError: what ends a client; see `Agent.run` and `HttpCoordinatorClient.connect`.
    """
    if options.trainer not in TRAINERS:
        allowed = ", ".join(sorted(TRAINERS))
        raise InvalidInput(f"there is no trainer {options.trainer!r}; allowed: {allowed}", trainer=options.trainer)
    key = ClientKey.ephemeral() if options.key_file is None else load_or_create_key(options.key_file)
    equipment = Equipment(
        clock=SystemClock(),
        jitter=system_jitter(),
        new_worker=WorkerThread,
        open_provider=open_provider,
        open_trainer=partial(open_trainer, options.trainer),
        observer=observer,
    )
    patience = Patience(equipment.clock, equipment.jitter, options.reconnect_bound_s)
    api = await HttpCoordinatorClient.connect(options.url, patience, options.verify)
    try:
        capabilities = Capabilities(batches_per_round=options.batches_per_round, trainer=options.trainer)
        admission = Admission(capabilities, options.invitation)
        agent = Agent(api, key, admission, equipment, options.reconnect_bound_s)
        started(agent)
        return await agent.run()
    finally:
        await api.aclose()
