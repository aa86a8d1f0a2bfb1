"""`epochal client`: join a run and train until it ends."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from batching.mesh.layout import parse_mesh
from coordinator_client.client_key import ClientKey, load_or_create_key
from coordinator_client.http import CoordinatorClient
from coordinator_client.session import ClientProfile
from data_providers.locations import parse_location
from data_providers.opening import open_provider
from data_providers.protocol import DataProvider
from data_providers.sources.cache import DEFAULT_CACHE_BYTES, BlockCache
from epochal.cli.event_log import log_event
from epochal.cli.logs import LogFormat, start_logging
from epochal.cli.options import LogFormatOption, MetricsHostOption, VerboseOption, trainer_token, trusted
from epochal.cli.run import run_to_end, say
from epochal.cli.shutdown import Interrupts
from run_manager.agent import Agent, EndReason
from run_manager.context import ClientDependencies, RunAccess
from run_manager.events import Event, Observer
from run_manager.metrics import ClientMetrics
from runtime.http_client import check_url
from runtime.metrics import LOOPBACK, new_registry, serving_metrics
from runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from runtime.worker_thread import Worker, WorkerThread
from state.errors import InvalidInput
from state.messages import Capabilities
from trainers.mesh.launcher import DEFAULT_BATCH_SIZE, MeshOptions
from trainers.protocol import Trainer
from trainers.registry import REMOTE, RemoteOptions, check_trainer_name, open_mesh_trainer, open_trainer

log = logging.getLogger(__name__)

TRAINER_BOUND_S = 60.0
"""Seconds to keep trying a training service that does not answer, before the step fails and is reported."""


@dataclass(frozen=True, slots=True)
class TrainerChoice:
    """Which trainer to open: by its name, and with the options of a remote one or of a mesh."""

    name: str
    remote: RemoteOptions | None = None
    mesh: MeshOptions | None = None


@dataclass(frozen=True, slots=True)
class DataChoice:
    """Where the run's data are for this client (None: where the state file says), and where to keep them."""

    location: str | None
    cache_dir: Path | None
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of `epochal client`, checked as far as they can be without a coordinator."""

    url: str
    key_path: Path | None
    capabilities: Capabilities
    invitation: str | None
    trainer: TrainerChoice
    data: DataChoice
    verify: bool | str
    reconnect_bound_s: float
    metrics_address: tuple[int, str] | None


class ChunkPolicyOption(StrEnum):
    """The names of `batching.chunking.policies.POLICIES`."""

    BYTES = "bytes"
    NUMBERS = "numbers"


def client(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the coordinator, such as http://host:8000.")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="File with this client's private key, created if missing. A client that returns with its key keeps its"
            " place in the run. Default: a new key each time."
        ),
    ] = None,
    trainer: Annotated[
        str, typer.Option(help="What computes: numpy, remote (a training service), or null (nothing; for tests).")
    ] = "numpy",
    trainer_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of the training service of --trainer remote. Its token is read from EPOCHAL_TRAINER_TOKEN.",
        ),
    ] = None,
    chunk_policy: Annotated[
        ChunkPolicyOption,
        typer.Option(help="Limit requests to the training service by bytes (10 for each number) or by numbers."),
    ] = ChunkPolicyOption.BYTES,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Where this machine finds the run's data: a path, a URL, or tcp://host:port."
            " Default: where the run's state file says.",
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES", help="Train as several processes whose devices form a mesh, such as data=2,tensor=2."
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Number of processes of --mesh. Default: one for each device.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help=f"Rows of one shard of --mesh in each step. Default: {DEFAULT_BATCH_SIZE}.")
    ] = None,
    share: Annotated[
        int, typer.Option(min=1, help="With 2, this client gets twice as many batches as one with 1.")
    ] = 1,
    invitation: Annotated[str | None, typer.Option(help="Invitation code, if the run requires one.")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="Trust this certificate, or these authorities (PEM), for the coordinator and the training service."
        ),
    ] = None,
    reconnect_s: Annotated[
        float, typer.Option("--reconnect", min=1, help="Seconds to keep trying when the coordinator does not answer.")
    ] = DEFAULT_BOUND_S,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder that keeps data downloaded over HTTP or from buckets; clients may share it."
        ),
    ] = None,
    cache_bytes: Annotated[int, typer.Option(help="Maximum size of --cache in bytes.")] = DEFAULT_CACHE_BYTES,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Show metrics to Prometheus at this port; 0 picks a free one."),
    ] = None,
    metrics_host: MetricsHostOption = LOOPBACK,
    log_format: LogFormatOption = LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> None:
    """Join a run and train until it ends. Ctrl-C finishes the round and leaves; a second Ctrl-C stops at once."""
    start_logging(log_format, verbose=verbose)
    verify = trusted(tls_ca)
    choice = DataChoice(data, cache, cache_bytes)
    options = ClientOptions(
        url=url,
        key_path=key,
        capabilities=Capabilities(batches_per_round=share, trainer=trainer),
        invitation=invitation,
        trainer=TrainerChoice(
            trainer,
            _remote_options(trainer, trainer_url, chunk_policy.value, verify),
            _mesh_options(trainer, mesh, processes, batch_size, choice),
        ),
        data=choice,
        verify=verify,
        reconnect_bound_s=reconnect_s,
        metrics_address=None if metrics_port is None else (metrics_port, metrics_host),
    )
    run_to_end(_run(options))


def _remote_options(trainer: str, url: str | None, policy: str, verify: bool | str) -> RemoteOptions | None:
    if (trainer == REMOTE) != (url is not None):
        raise InvalidInput("--trainer remote and --trainer-url URL are given together or not at all")
    if url is None:
        return None
    check_url(url, "training service")
    retry_policy = RetryPolicy(bound_s=TRAINER_BOUND_S)
    return RemoteOptions(url, retry_policy, trainer_token(), policy, verify)


def _mesh_options(
    trainer: str, mesh: str | None, processes: int | None, batch_size: int | None, data: DataChoice
) -> MeshOptions | None:
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
        data=data.location,
        cache_dir=data.cache_dir,
        cache_bytes=data.cache_bytes,
    )


async def _run(options: ClientOptions) -> None:
    dependencies = _dependencies(options)  # what the user got wrong is said before anybody is asked
    key = ClientKey.ephemeral() if options.key_path is None else load_or_create_key(options.key_path)
    profile = ClientProfile(key, options.capabilities, options.invitation)
    async with (
        _observing(options.metrics_address) as observer,
        await CoordinatorClient.connect(options.url, dependencies.retry_policy, options.verify) as api,
    ):
        await _run_agent(Agent(api, profile, replace(dependencies, observer=observer)))


@contextlib.asynccontextmanager
async def _observing(metrics_address: tuple[int, str] | None) -> AsyncIterator[Observer]:
    """Log the client's events, and show metrics of them where there is an address, until the context is left."""
    if metrics_address is None:
        yield log_event
        return
    registry = new_registry()
    metrics = ClientMetrics(registry)

    def observe(event: Event) -> None:
        log_event(event)
        metrics.observe(event)

    async with serving_metrics(registry, *metrics_address) as url:
        say(f"metrics at {url}")
        yield observe


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
    chosen, data = options.trainer, options.data
    check_trainer_name(chosen.name)
    if data.location is not None:
        parse_location(data.location)
    cache = None if data.cache_dir is None else BlockCache(data.cache_dir, data.cache_bytes)

    async def provider(request: RunAccess) -> DataProvider:
        return await open_provider(request.state, request.ticket, data.location, cache)

    async def trainer(access: RunAccess, worker: Worker) -> Trainer:
        if chosen.mesh is not None:
            return await open_mesh_trainer(chosen.mesh, access.state, access.ticket, worker)
        return open_trainer(chosen.name, access.state, worker, chosen.remote)

    return ClientDependencies(
        retry_policy=RetryPolicy(bound_s=options.reconnect_bound_s),
        new_worker=WorkerThread,
        open_provider=provider,
        open_trainer=trainer,
        observer=log_event,
    )
