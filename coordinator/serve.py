"""Serving a coordinator: run directory, service and HTTP server started in order, and stopped in order."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from coordinator.api.app import create_app
from coordinator.clock import SystemClock
from coordinator.desk import Desk
from coordinator.identity import AdminToken, Identity, load_or_create_key
from coordinator.layouts import Layouts
from coordinator.service import CoordinatorService, ServiceParts
from coordinator.store.blobs import DirectoryBlobs
from coordinator.store.directory import KEYS_FOLDER, RunDirectory
from state.config import StateFile
from state.errors import InvalidInput, StoreFailed

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

BACKLOG = 4096
KEEP_ALIVE_S = 75
SHUTDOWN_TIMEOUT_S = 3
MAX_CONNECTIONS = 32_768


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a coordinator is served.

    Attributes:
        port: 0 picks a free one.
        insecure: serve beyond loopback without TLS; tokens and results can then be read on the way.
    """

    run_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    version: str = "0"
    source: str = "state.toml"


@dataclass(frozen=True, slots=True)
class Serving:
    """A coordinator that accepts requests.

    Attributes:
        admin_token: known only at the run's first start, else None.
    """

    url: str
    desk: Desk
    admin_token: str | None


def check_exposure(options: ServeOptions) -> None:
    """Raises `InvalidInput` for half a TLS configuration, or for plain HTTP beyond loopback without `insecure`."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key are given together or not at all")
    if options.tls_cert is not None or options.insecure:
        return
    try:
        loopback = options.host == "localhost" or ip_address(options.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InvalidInput(
            f"--host {options.host} is not this machine alone: tokens and results would travel unprotected; "
            "give --tls-cert and --tls-key, put a TLS proxy in front, or accept it with --insecure"
        )


def _bind(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that say they are TCP; without it every answer may wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidInput(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


async def _in_thread(work: Callable[[], object]) -> object:
    return await asyncio.to_thread(work)


@contextlib.asynccontextmanager
async def serving(state_file: StateFile, options: ServeOptions) -> AsyncIterator[Serving]:
    """Serve a run until the context is left.

    Raises:
        InvalidInput: the options, or a state file that contradicts the kept run.
        StoreFailed: the run directory cannot be used, is in use, or is damaged.
    """
    check_exposure(options)
    _allow_connections()
    store = RunDirectory.open(options.run_dir)
    try:
        keys = options.run_dir / KEYS_FOLDER
        identity = Identity(load_or_create_key(keys), state_file.run_id)
        admin, admin_token = AdminToken.load_or_create(keys)
        blobs = await DirectoryBlobs.open(options.run_dir, state_file.blobs.max_total_bytes)
        parts = ServiceParts(store, blobs, SystemClock(), identity.public_key_hex, options.source)
        service = await CoordinatorService.open(parts, state_file)
        desk = Desk(service, identity, admin, Layouts(), _in_thread)
        with _bind(options) as listener:
            server = _Server(_uvicorn_config(desk, options))
            async with asyncio.TaskGroup() as tasks:
                served = tasks.create_task(service.serve())
                http = tasks.create_task(server.serve([listener]))
                await service.started.wait()
                try:
                    yield Serving(_url(options, listener), desk, admin_token)
                finally:
                    server.should_exit = True
                    service.release_readers()
                    await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S + 1)
                    served.cancel()
        with contextlib.suppress(StoreFailed):  # said and logged when it happened
            await service.save_state_file()
    finally:
        await store.aclose()


def _uvicorn_config(desk: Desk, options: ServeOptions) -> uvicorn.Config:
    config = uvicorn.Config(
        create_app(desk, options.version),
        log_config=None,
        access_log=False,
        lifespan="off",
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        ssl_certfile=None if options.tls_cert is None else str(options.tls_cert),
        ssl_keyfile=None if options.tls_key is None else str(options.tls_key),
        server_header=False,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        files = f"{options.tls_cert} and {options.tls_key}"
        raise InvalidInput(f"{files} are not a certificate and its key: {error.strerror or error}") from error
    return config


def _allow_connections() -> None:
    """Let the process open as many files as it may; many systems grant 1,024 until they are asked."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system's own bound is lower than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: signals belong to the command line."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _url(options: ServeOptions, listener: socket.socket) -> str:
    port: int = listener.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{'https' if options.tls_cert else 'http'}://{host}:{port}"
