"""Serving a coordinator: store, service and HTTP server started in order, and stopped in order."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from coordinator.api.app import create_app
from coordinator.api.metrics import CoordinatorMetrics
from coordinator.auth.admin import AdminToken
from coordinator.auth.nonces import JoinNonces
from coordinator.auth.signing_key import SigningKey
from coordinator.auth.tokens import SessionTokens
from coordinator.handlers import Handlers
from coordinator.layout_cache import LayoutCache
from coordinator.opening import ServiceOptions
from coordinator.service import CoordinatorService
from coordinator.store.open import open_store
from runtime.clock import SystemClock
from runtime.http_server import SHUTDOWN_TIMEOUT_S, Endpoint, allow_connections
from runtime.metrics import new_registry
from runtime.worker_thread import SharedThreads
from state.config.state_file import StateFile
from state.errors import StoreFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a coordinator is served.

    Attributes:
        store: URL of the place where the run is kept.
        endpoint: where it listens.
        is_restored: the store is a backup's.
        new_admin_token: make another admin token; the one before ends.
    """

    store: str
    endpoint: Endpoint = field(default_factory=Endpoint)
    version: str = "0"
    source: str = "state.toml"
    is_restored: bool = False
    new_admin_token: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    """A coordinator that accepts requests.

    Attributes:
        admin_token: known only where it was made by this start: the run's first, or one with `new_admin_token`.
        registry: the metrics that it shows; what else lives in its process may add its own.
    """

    url: str
    handlers: Handlers
    admin_token: str | None
    registry: CollectorRegistry


@contextlib.asynccontextmanager
async def serving(state_file: StateFile, options: ServeOptions) -> AsyncIterator[Serving]:
    """Serve a run until the context is left.

    Raises:
        InvalidInput: the options, or a state file that contradicts the kept run.
        StoreFailed: the store cannot be used, is in use, or is damaged.
    """
    endpoint = options.endpoint
    endpoint.check_exposure()
    allow_connections()
    store = await open_store(options.store, state_file.blobs.max_total_bytes)
    try:
        run_id, key = state_file.run_id, SigningKey(await store.keys.private_key())
        service_options = ServiceOptions(store, SystemClock(), key.public_key_hex, options.source)
        service = await CoordinatorService.open(service_options, state_file, is_restored=options.is_restored)
        with endpoint.bind() as listener:
            # Last of all that may fail: a start that fails must make no token, which nobody would ever see.
            admin, admin_token = await AdminToken.load_or_create(store.keys, anew=options.new_admin_token)
            nonces, tokens = JoinNonces(key, run_id), SessionTokens(key, run_id)
            handlers = Handlers(service, nonces, tokens, admin, LayoutCache(), SharedThreads())
            metrics = CoordinatorMetrics(new_registry())
            server = endpoint.server(create_app(handlers, options.version, metrics))
            async with asyncio.TaskGroup() as tasks:
                served = tasks.create_task(service.serve())
                http = tasks.create_task(server.serve([listener]))
                await service.started.wait()
                try:
                    yield Serving(endpoint.url_of(listener), handlers, admin_token, metrics.registry)
                finally:
                    server.should_exit = True
                    service.readers.release()
                    await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S + 1)
                    served.cancel()
        with contextlib.suppress(StoreFailed):  # said and logged when it happened
            await service.save_state_file()
    finally:
        await store.aclose()
