"""`epochal verifier`: compute results of a run's members again, for a coordinator that judges them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.client_data import DataChoice
from epochal.cli.options.client_trainer import ClientTrainer
from epochal.cli.options.coordinators import naming_wrong_token
from epochal.cli.options.shared import (
    VERIFIER_TOKEN_VARIABLE,
    CoordinatorCaOption,
    LogOptions,
    UrlArgument,
    check_worker_token,
    trusted,
)
from epochal.cli.options.spool_folder import checked_spool_folder
from epochal.cli.options.torch_choice import TorchTrainerChoice
from epochal.cli.options.torch_trainer import check_goes_with_torch
from epochal.cli.output.printing import run_to_end, say
from epochal.cli.shutdown import interruption
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import DataProvider
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.run_manager.events import ignore
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.tools.evaluate.losses import EvaluationOptions
from epochal.tools.replays.replay_worker import ReplayWorker, VerifierOptions, opened_verifier
from epochal.trainers.architectures import TORCH
from epochal.trainers.registry import TRAINERS, TrainerOptions, check_computes_again
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS

MAX_PIECES = 1_000
MAX_HELD_OUT = 1 << 20
"""Number of held-out samples, from the first one on, of which those of a score are drawn."""


def verifier(
    url: UrlArgument,
    computing: TorchTrainerChoice,
    data: DataChoice,
    logged: LogOptions,
    token: Annotated[
        str,
        typer.Option(envvar=VERIFIER_TOKEN_VARIABLE, help="Token from `epochal token verifier`.", show_default=False),
    ] = "",
    trainer: Annotated[
        str, typer.Option(help="What computes: numpy (the embedded model), torch, or the trainer of a package.")
    ] = "numpy",
    calibrate: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_PIECES,
            metavar="N",
            help="First repeat work of N rounds of the run in each class that this machine has, and report how far"
            " apart honest repetitions are; in the run that is repeated from time to time.",
        ),
    ] = 0,
    spool: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder on a disk for temporary files: the model as often as `verify.within` of the state file says,"
            " and twice more. Default: /var/tmp, or where the system keeps temporary files.",
        ),
    ] = None,
    reconnect_s: Annotated[
        float, typer.Option("--reconnect", min=0, help="Seconds to retry while the coordinator does not answer.")
    ] = DEFAULT_BOUND_S,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Compute results of a run's members again, and report how far apart the two are; or score them.

    The coordinator says which results, by lease, and judges what comes of it. Run it on the operator's own machines, as
    many as you like, each with a token of its own. What it holds when it is stopped goes to another one. It ends by
    itself once the run is finished and no other result is to be computed. Where the state file has `verify.by =
    "scores"`, it computes by how much a part of a result lowers the loss on held-out data, which --data names.
    """
    logged.start()
    check_worker_token(token, VERIFIER_TOKEN_VARIABLE, "verifier")
    check_computes_again(trainer)
    torch = computing.options()
    check_goes_with_torch(torch, trainer)
    options = TrainerOptions(None, torch or DEFAULT_TORCH_OPTIONS, Permissions.of_own_run())
    verify, policy = trusted(tls_ca), RetryPolicy(bound_s=reconnect_s)
    open_provider = data.opener(verify, options.permissions)
    work = _Work(trainer, options, data.data, open_provider, policy, checked_spool_folder(spool))
    run_to_end(_verify(url, token, work, calibrate, verify))


@dataclass(frozen=True, slots=True)
class _Work:
    """How the process computes: trainer, data, retries, and the folder of its temporary files."""

    trainer: str
    options: TrainerOptions
    data: str | None
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]]
    policy: RetryPolicy
    spool_folder: Path

    @property
    def varies(self) -> bool:
        """Whether the trainer takes the options of torch."""
        return self.trainer == TORCH or self.trainer not in TRAINERS

    @property
    def held_out(self) -> EvaluationOptions:
        """On which data results are scored: those of --data, or the run's, of which those for validation."""
        torch = self.options.torch if self.varies else None
        return EvaluationOptions(self.options.permissions, self.data, samples=MAX_HELD_OUT, torch=torch)

    def opening(self, precision: str | None, micro_batch: int | None) -> ClientDependencies:
        """Return what opens data and trainer, with another precision or other micro-batches where these are given."""
        torch = self.options.torch
        if precision is not None or micro_batch is not None:
            torch = replace(torch, micro_batch=micro_batch or torch.micro_batch)
            torch = torch if precision is None else torch.computing_in(precision)
            check_goes_with_torch(torch, self.trainer)
        trainer = ClientTrainer(self.trainer, replace(self.options, torch=torch), None)
        return ClientDependencies(
            retry_policy=self.policy,
            new_worker=WorkerThread,
            open_provider=self.open_provider,
            open_trainer=trainer.open,
            observer=ignore,
            spool_folder=self.spool_folder,
            permissions=self.options.permissions,
        )


async def _verify(url: str, token: str, work: _Work, pieces: int, verify: bool | str) -> None:
    async with await CoordinatorClient.connect(url, work.policy, verify) as coordinator:
        coordinator.use_token(token)
        options = VerifierOptions(work.policy, work.spool_folder, work.opening, work.held_out, say, work.varies)
        with interruption() as stop, naming_wrong_token("verifier", VERIFIER_TOKEN_VARIABLE, url):
            async with opened_verifier(coordinator, options) as opened:
                say(f"verifying results of run {coordinator.run_id}")
                async with asyncio.TaskGroup() as tasks:
                    computing = tasks.create_task(_compute(opened, pieces))
                    stopping = tasks.create_task(stop.wait())
                    await asyncio.wait([stopping, computing], return_when=asyncio.FIRST_COMPLETED)
                    stopping.cancel()
                    computing.cancel()


async def _compute(opened: ReplayWorker, pieces: int) -> None:
    if pieces:
        await opened.calibrate(pieces)
    await opened.run()
