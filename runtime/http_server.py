"""Shared by all HTTP servers of the project: listening, TLS, and limits on connections and requests."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from state.errors import InvalidInput

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

BACKLOG = 4096
KEEP_ALIVE_S = 75
SHUTDOWN_TIMEOUT_S = 3
MAX_CONNECTIONS = 32_768
HEAD_TIMEOUT_S = 20.0
"""Maximum time for a request's line and headers, from the start of the connection or from their first byte."""
MAX_HEAD_BYTES = 256 * 1024
"""Approximate maximum length of a request's line and headers: bytes that arrive with them are counted too."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen.

    Attributes:
        port: 0 picks a free one.
        insecure: serve other machines without TLS, so that the network can read the traffic.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False

    def check(self) -> None:
        """Raise `InvalidInput` if the TLS files are not usable, or if plain HTTP would leave this machine."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("--tls-cert and --tls-key must be given together")
        if self.tls_cert is not None:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.tls_cert, self.tls_key)
            except OSError as error:  # ssl.SSLError is one
                files = f"{self.tls_cert} and {self.tls_key}"
                raise InvalidInput(f"{files} are not a certificate and its key: {error.strerror or error}") from error
        if self.tls_cert is not None or self.insecure:
            return
        if not is_loopback(self.host):
            raise InvalidInput(
                f"--host {self.host} lets other machines connect, and tokens and results would travel unencrypted; "
                "give --tls-cert and --tls-key, put a TLS proxy in front, or accept it with --insecure"
            )

    def bind(self) -> socket.socket:
        """Return a listening socket. Raise `InvalidInput` if the address cannot be used."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # asyncio sets TCP_NODELAY only if the protocol is given; without it every answer may wait 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise InvalidInput(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}") from error
        listener.setblocking(False)
        return listener

    def url_of(self, listener: socket.socket) -> str:
        """Return the base URL of a server on a socket from `bind`."""
        port: int = listener.getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}"

    def server(self, app: Any) -> "HttpServer":
        """Return a server for an ASGI app."""
        config = uvicorn.Config(
            app,
            http=BoundedHeads,
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
            ssl_certfile=None if self.tls_cert is None else str(self.tls_cert),
            ssl_keyfile=None if self.tls_key is None else str(self.tls_key),
            server_header=False,
        )
        return HttpServer(config)


class BoundedHeads(HttpToolsProtocol):
    """A connection that is closed if a request's head is too slow or too long; uvicorn limits neither."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaits_head():
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _awaits_head(self) -> bool:
        """Return whether no request is being received or answered."""
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._awaits_head():
            self.transport.close()

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer(uvicorn.Server):
    """Uvicorn without its signal handlers: the command line handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving_app(endpoint: Endpoint, app: Any, max_connections: int = MAX_CONNECTIONS) -> AsyncIterator[str]:
    """Serve an ASGI app until the context is left; yield the base URL. Raise `InvalidInput` if it cannot listen."""
    server = endpoint.server(app)
    server.config.limit_concurrency = max_connections
    with endpoint.bind() as listener:
        async with asyncio.TaskGroup() as tasks:
            http = tasks.create_task(server.serve([listener]))
            try:
                yield endpoint.url_of(listener)
            finally:
                server.should_exit = True
                await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S + 1)


def open_files_limit() -> int:
    """Return how many files and connections this process may have open."""
    if resource is None:
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft


def allow_connections() -> None:
    """Raise the process's limit of open files, often 1,024, towards `MAX_CONNECTIONS`."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system's limit is lower than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
