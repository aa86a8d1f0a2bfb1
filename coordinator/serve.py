"""Serving a coordinator: starts store, service and HTTP server, and stops them in reverse order."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from epochal.coordinator.api.app import create_app
from epochal.coordinator.api.coordinator_metrics import CoordinatorMetrics
from epochal.coordinator.auth.admin import AdminToken
from epochal.coordinator.auth.join_hosts import JoinHosts
from epochal.coordinator.auth.nonces import JoinNonces
from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.coordinator.blobs.downloads import Downloads
from epochal.coordinator.blobs.from_object_store import Arrivals
from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.blobs.leased_replays import LeasedReplays
from epochal.coordinator.blobs.room import BlobRoom
from epochal.coordinator.blobs.update_maker import UpdateMaker
from epochal.coordinator.blobs.uploads import Uploads
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.coordinator.notify.addresses import Address
from epochal.coordinator.notify.notice_sending import open_notice_client
from epochal.coordinator.notify.notifier import Notifier
from epochal.coordinator.run.genesis import NO_GENESIS, Genesis
from epochal.coordinator.run.opening import ServiceOptions, signing_key_of
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.open import open_store
from epochal.coordinator.store.replication import Program
from epochal.coordinator.store.store import Store
from epochal.runtime.clock import SystemClock
from epochal.runtime.connections.descriptors import allow_connections, connection_limit
from epochal.runtime.connections.shedding import ConnectionLimits, ServerConnections
from epochal.runtime.files.spool import Spool
from epochal.runtime.http.allowed_hosts import allowed_hosts
from epochal.runtime.http.http_server import SHUTDOWN_TIMEOUT_S, Endpoint
from epochal.runtime.merging.merger import Merger
from epochal.runtime.metrics.metrics_registry import new_registry
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import SharedThreads, WorkerThread
from epochal.state.config.state_file import StateFile
from epochal.state.errors import StoreBlocked, StoreFailed, StoreLost

log = logging.getLogger(__name__)


ADMIN_REFRESH_S = 2.0
"""Time between two checks whether another coordinator of the run was started with `--new-admin-token`."""
FAREWELL_S = 3.0
"""Time from a failure of the store to the end of the process, in which requests are answered with the reason."""

SCRATCH_ADVICE = "make room there; of a run in a database, TMPDIR names another folder"
"""What an operator does whose coordinator's temporary files find no room."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a coordinator is served.

    Attributes:
        store: URL of the run's store.
        source: name of the state file in messages.
        is_restored: whether the store was restored from a backup.
        allowed_hosts: names under which the coordinator answers (`runtime/http/allowed_hosts.py`).
        new_admin_token: whether to replace the admin token.
        other_connections: maximum number of connections of other servers in the process.
        new_coordinator_key: whether to replace the key that signs tokens and tickets.
        genesis: the run's model at its start, where the operator makes it.
        blobs_folder: folder of blobs that all coordinators share which serve the run from a database.
        notified: receive the notices that `[notify]` asks for.
        wait_for_store_s: seconds for which a start waits for a store that cannot be used now.
        advertised: URL at which others reach this coordinator; None for the address on which it listens.
    """

    store: str
    endpoint: Endpoint = field(default_factory=Endpoint)
    version: str = "0"
    source: str = "state.toml"
    is_restored: bool = False
    allowed_hosts: tuple[str, ...] = ()
    new_admin_token: bool = False
    new_coordinator_key: bool = False
    genesis: Genesis = NO_GENESIS
    other_connections: int = 0
    blobs_folder: Path | None = None
    advertised: str | None = None
    notified: tuple[Address, ...] = ()
    wait_for_store_s: float = 0.0

    def hosts(self) -> tuple[str, ...]:
        """Return the names and addresses by which the operator says that the coordinator is reached."""
        advertised = None if self.advertised is None else urlsplit(self.advertised).hostname
        return (*self.allowed_hosts, self.endpoint.host, *filter(None, [advertised]))


@dataclass(frozen=True, slots=True)
class Serving:
    """A coordinator that accepts requests.

    Attributes:
        admin_token: the token if this start made it: the run's first start, or one with `new_admin_token`.
        registry: its metrics, to which other parts of the process may add theirs.
    """

    url: str
    handlers: Handlers
    admin_token: str | None
    registry: CollectorRegistry


@contextlib.asynccontextmanager
async def serving(state_file: StateFile, options: ServeOptions) -> AsyncIterator[Serving]:
    """Serve a run until the context is left.

    Raises:
        InvalidInput: the options are wrong, or the state file contradicts the kept run.
        StoreBlocked: it could not be used within `wait_for_store_s`.
        StoreFailed: it cannot be used, is in use, or is damaged.
        StoreLost: the store failed while the run was served.
    """
    endpoint = options.endpoint
    endpoint.check()
    hosts = allowed_hosts(endpoint.host, options.allowed_hosts)
    join_hosts = JoinHosts(options.hosts(), endpoint.tls_cert)
    allow_connections()
    run_id = state_file.run_id
    store, key, service, insight = await _open_in_time(state_file, options)
    try:
        with endpoint.bind() as listener:
            # Last of all that may fail: a failed start must not make a token, which would never be shown.
            admin, admin_token = await AdminToken.load_or_create(store.keys, anew=options.new_admin_token)
            nonces, tokens = JoinNonces(key, run_id), SessionTokens(key, run_id)
            intake = Intake(service, SharedThreads(), options.genesis.layout_of)
            uploads, arrivals = Uploads(intake), Arrivals(intake)
            spool = Spool(store.place.scratch, advice=SCRATCH_ADVICE)
            merger = Merger.with_threads(service.merge_at, spool, WorkerThread)
            replays = LeasedReplays.of(service)
            handlers = Handlers(
                service, nonces, tokens, admin, intake, uploads, Downloads(service), arrivals, replays, insight
            )
            metrics = CoordinatorMetrics(new_registry())
            connections = ServerConnections(ConnectionLimits(connection_limit(options.other_connections)))
            server = endpoint.server(create_app(handlers, options.version, metrics, hosts, join_hosts), connections)
            async with open_notice_client() as hooks, asyncio.TaskGroup() as tasks:
                notifier = Notifier(service, insight, store, options.notified, hooks, metrics.count_notice)
                served = tasks.create_task(service.serve())
                await service.started.wait()  # who comes earlier waits at the listener, and is not refused
                http = tasks.create_task(server.serve([listener]))
                room = tasks.create_task(BlobRoom(service, intake.checkpoints.form).run())
                updates = tasks.create_task(UpdateMaker(intake, merger, spool).run())
                store.place.note_address(options.advertised or endpoint.url_of(listener))
                refreshing = tasks.create_task(_refresh_admin_token(admin, store))
                farewell = tasks.create_task(_end_after_failure(service))
                notifying = tasks.create_task(notifier.run())
                try:
                    yield Serving(endpoint.url_of(listener), handlers, admin_token, metrics.registry)
                finally:
                    await notifier.finish()
                    server.should_exit = True
                    service.readers.release()
                    await arrivals.aclose()
                    await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S / 2)
                    await uploads.aclose()  # before the server cuts off the requests that bring them
                    await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S / 2 + 1)
                    served.cancel()
                    farewell.cancel()
                    room.cancel()
                    updates.cancel()
                    refreshing.cancel()
                    notifying.cancel()
        if service.health.failure is not None:
            raise StoreLost(f"nothing can be kept any more: {service.health.failure}")
        with contextlib.suppress(StoreFailed):  # logged when it happened
            await service.save_state_file()
    finally:
        await store.aclose()


async def _open_in_time(
    state_file: StateFile, options: ServeOptions
) -> tuple[Store, SigningKey, CoordinatorService, ReadSide]:
    """Return as `_open` once the store can be used. Raise as `serving`."""
    within_s, is_logged = options.wait_for_store_s, False
    backoff = RetryPolicy(bound_s=within_s, attempts=math.inf if within_s else 1).begin()
    while True:
        try:
            return await _open(state_file, options)
        except StoreBlocked as blocked:
            delay_s = backoff.next_delay_s(blocked)
            if not is_logged:
                log.warning("store_awaited", extra={"reason": blocked.message, "within_s": within_s})
            is_logged = True
            await asyncio.sleep(delay_s)


async def _open(state_file: StateFile, options: ServeOptions) -> tuple[Store, SigningKey, CoordinatorService, ReadSide]:
    """Return the run's store, which is open, the coordinator's key, the service of the run, and its read side.

    Raise as `serving`, and `StoreBlocked` at once.
    """
    blobs, program = state_file.blobs, Program(options.version, RULES_VERSION)
    place = blobs.max_total_bytes, blobs.store, state_file.run_id, options.blobs_folder
    store = await open_store(options.store, *place, program)
    try:
        key = await signing_key_of(store, anew=options.new_coordinator_key)
        worker = SharedThreads()
        history = RunHistory(store.journal, worker)
        service_options = ServiceOptions(
            store,
            SystemClock(),
            key.public_key_hex,
            history,
            options.source,
            options.new_coordinator_key,
            genesis=options.genesis,
            worker=worker,
        )
        service = await CoordinatorService.open(service_options, state_file, is_restored=options.is_restored)
        return store, key, service, ReadSide(service, history)
    except BaseException:
        await store.aclose()
        raise


async def _refresh_admin_token(admin: AdminToken, store: Store) -> None:
    """Take over an admin token that the start of another coordinator of the run has made."""
    while store.replication is not None:
        await asyncio.sleep(ADMIN_REFRESH_S)
        with contextlib.suppress(StoreFailed):
            await admin.refresh(store.keys)


async def _end_after_failure(service: CoordinatorService) -> None:
    """Raise `StoreLost` after a failure of the store, once the readers had time to hear of it."""
    await service.health.failed.wait()
    await asyncio.sleep(FAREWELL_S)
    raise StoreLost(f"nothing can be kept any more: {service.health.failure}")
