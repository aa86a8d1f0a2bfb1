"""`epochal client`: join a run and train until it ends."""

import asyncio
import logging
import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from batching.mesh.layout import parse_mesh
from coordinator_client.client_key import ClientKey, load_or_create_key
from coordinator_client.http import CoordinatorClient
from coordinator_client.session import ClientProfile
from data_providers.locations import parse_location
from data_providers.opening import open_provider
from data_providers.protocol import DataProvider
from data_providers.sources.cache import DEFAULT_CACHE_BYTES, BlockCache
from epochal.cli.logs import LogFormat, start_logging
from epochal.cli.options import LogFormatOption, VerboseOption, trainer_token, trusted
from epochal.cli.run import run_to_end, say
from epochal.cli.shutdown import Interrupts
from run_manager.agent import Agent, EndReason
from run_manager.context import ClientDependencies, RunAccess
from run_manager.events import DocumentArrived, Event, StepEntered
from runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from runtime.worker_thread import Worker, WorkerThread
from state.errors import InvalidInput
from state.messages import Capabilities
from trainers.mesh.processes import DEFAULT_BATCH_SIZE, MeshOptions
from trainers.protocol import Trainer
from trainers.registry import REMOTE, RemoteOptions, check_trainer_name, open_mesh_trainer, open_trainer
from trainers.remote.client import check_service_url

log = logging.getLogger(__name__)

TRAINER_BOUND_S = 60.0
"""For how long a training service that does not answer is tried again, before the step fails and is reported."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a client was asked for."""

    url: str
    key_path: Path | None
    trainer: str
    data: str | None
    share: int
    invitation: str | None
    verify: bool | str
    reconnect_bound_s: float
    cache_dir: Path | None
    cache_bytes: int
    remote: RemoteOptions | None = None
    mesh: MeshOptions | None = None


class ChunkPolicyOption(StrEnum):
    """As `chunking.POLICIES`."""

    BYTES = "bytes"
    NUMBERS = "numbers"


def client(
    url: Annotated[str, typer.Argument(metavar="URL", help="The coordinator, such as http://host:8000.")],
    key: Annotated[
        Path | None,
        typer.Option(help="The client's key, made if missing; it keeps its place. Default: a new key."),
    ] = None,
    trainer: Annotated[
        str, typer.Option(help="numpy, remote (a training service's), or null (no arithmetic).")
    ] = "numpy",
    trainer_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The training service of --trainer remote; its token: EPOCHAL_TRAINER_TOKEN."),
    ] = None,
    chunk_policy: Annotated[
        ChunkPolicyOption, typer.Option(help="How its requests are measured: 10 bytes a number, or numbers.")
    ] = ChunkPolicyOption.BYTES,
    data: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", help="Where this machine has the run's data: path, URL, tcp://host:port."),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AXES", help="Be several processes whose devices form a mesh, such as data=2,tensor=2."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many processes the devices of --mesh are spread over. Default: one each.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help=f"Rows of one shard of --mesh in each step. Default: {DEFAULT_BATCH_SIZE}.")
    ] = None,
    share: Annotated[int, typer.Option(min=1, help="Batches per round, relative to the other clients' shares.")] = 1,
    invitation: Annotated[str | None, typer.Option(help="The code of an invitation, if the run needs one.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Certificate authorities to trust for the coordinator and --trainer-url.")
    ] = None,
    reconnect_s: Annotated[
        float, typer.Option("--reconnect", min=1, help="Seconds to keep trying a coordinator that does not answer.")
    ] = DEFAULT_BOUND_S,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep data that come over HTTP or from buckets here; clients may share it."),
    ] = None,
    cache_bytes: Annotated[int, typer.Option(help="The cache's limit in bytes.")] = DEFAULT_CACHE_BYTES,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Join a run and train until it ends. Ctrl-C finishes the round and withdraws; a second one stops at once."""
    start_logging(log_format, verbose=verbose)
    verify = trusted(tls_ca)
    remote = _remote_options(trainer, trainer_url, chunk_policy.value, verify)
    of_mesh = _mesh_options(trainer, mesh, processes, batch_size)
    if of_mesh is not None:
        of_mesh = replace(of_mesh, data=data, cache_dir=cache, cache_bytes=cache_bytes)
    options = ClientOptions(
        url, key, trainer, data, share, invitation, verify, reconnect_s, cache, cache_bytes, remote, of_mesh
    )
    run_to_end(_run(options))


def _remote_options(trainer: str, url: str | None, policy: str, verify: bool | str) -> RemoteOptions | None:
    if (trainer == REMOTE) != (url is not None):
        raise InvalidInput("--trainer remote and --trainer-url URL are given together or not at all")
    if url is None:
        return None
    check_service_url(url)
    retry_policy = RetryPolicy(bound_s=TRAINER_BOUND_S)
    return RemoteOptions(url, retry_policy, trainer_token(), policy, verify)


def _mesh_options(trainer: str, mesh: str | None, processes: int | None, batch_size: int | None) -> MeshOptions | None:
    if mesh is None:
        if processes is not None or batch_size is not None:
            raise InvalidInput("--processes and --batch-size go with --mesh AXES")
        return None
    if trainer != "numpy":
        raise InvalidInput(f"--mesh goes with --trainer numpy, not with {trainer}")
    devices = math.prod(parse_mesh(mesh).values())
    return MeshOptions(
        mesh,
        process_count=devices if processes is None else processes,
        batch_size=DEFAULT_BATCH_SIZE if batch_size is None else batch_size,
    )


def base_url(url: str) -> str:
    """The coordinator's own URL, of a URL that may name its run too."""
    return url.partition("/v1/")[0].rstrip("/")


async def _run(options: ClientOptions) -> None:
    dependencies = _dependencies(options)  # what the user got wrong is said before anybody is asked
    key = ClientKey.ephemeral() if options.key_path is None else load_or_create_key(options.key_path)
    capabilities = Capabilities(batches_per_round=options.share, trainer=options.trainer)
    api = await CoordinatorClient.connect(base_url(options.url), dependencies.retry_policy, options.verify)
    try:
        await _run_agent(Agent(api, ClientProfile(key, capabilities, options.invitation), dependencies))
    finally:
        await api.aclose()


async def _run_agent(agent: Agent) -> None:
    running = asyncio.current_task()
    assert running is not None
    stopped = asyncio.Event()

    def leave() -> None:
        log.info("leaving_after_this_round")
        agent.finish_and_withdraw()

    def stop() -> None:
        stopped.set()
        running.cancel()

    interrupts = Interrupts(leave, stop)
    try:
        end = await agent.run()
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise
        running.uncancel()
        say("stopped")
        return
    finally:
        interrupts.restore()
    held = "" if end.step is None else f" with replica {end.step}, digest {end.replica_digest}"
    say(("the run is finished" if end.reason is EndReason.FINISHED else "withdrawn") + held)


def _dependencies(options: ClientOptions) -> ClientDependencies:
    check_trainer_name(options.trainer)
    if options.data is not None:
        parse_location(options.data)
    cache = None if options.cache_dir is None else BlockCache(options.cache_dir, options.cache_bytes)

    async def provider(request: RunAccess) -> DataProvider:
        return await open_provider(request.state, request.ticket, options.data, cache)

    async def trainer(access: RunAccess, worker: Worker) -> Trainer:
        if options.mesh is not None:
            return await open_mesh_trainer(options.mesh, access.state, access.ticket, worker)
        return open_trainer(options.trainer, access.state, worker, options.remote)

    return ClientDependencies(
        retry_policy=RetryPolicy(bound_s=options.reconnect_bound_s),
        new_worker=WorkerThread,
        open_provider=provider,
        open_trainer=trainer,
        observer=log_event,
    )


def log_event(event: Event) -> None:
    """One log line per event; the run document itself only with `--verbose`."""
    fields: dict[str, Any] = asdict(event)
    name = _snake(type(event).__name__)
    if isinstance(event, DocumentArrived | StepEntered):
        document = event.document
        fields = {"version": document.version, "phase": document.run_state.value, "run_step": document.step}
        if isinstance(event, StepEntered):
            fields["step_name"] = event.step_name
        log.debug(name, extra=fields)
        return
    if "message" in fields:
        fields["detail"] = fields.pop("message")
    log.info(name, extra=fields)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
