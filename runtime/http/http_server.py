"""Shared by all HTTP servers of the project: listening, TLS, and limits on connections and requests."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from epochal.runtime.connections.accepting import Acceptor, listening_socket
from epochal.runtime.connections.descriptors import connection_limit
from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.connections.shedding import (
    CONNECTION_IN_SCOPE,
    Connection,
    ConnectionLimits,
    Peer,
    ServerConnections,
    Shed,
)
from epochal.runtime.connections.whole_answers import offer
from epochal.runtime.http.certificate_names import dialled_host
from epochal.state.errors import InvalidInput

KEEP_ALIVE_S = 75
SHUTDOWN_TIMEOUT_S = 3
HEAD_TIMEOUT_S = 20.0
"""Maximum time for a request's line and headers, from the start of the connection or from their first byte."""
MAX_HEAD_BYTES = 256 * 1024
"""Approximate maximum length of a request's line and headers: bytes that arrive with them are counted too."""
SHORT_BODY_BYTES = 64 * 1024
SHORT_BODY_WAIT_S = 20.0
"""A stranger's request with a short body is handled when it is whole, or after this time. Before, it costs little."""
MAX_PIPELINED_REQUESTS = 16
"""Maximum number of requests that a connection sends before it reads the answer to one."""
REST_TIMEOUT_S = 60.0
"""Maximum time in which the rest of a request's body may arrive, and is ignored, after the request was answered."""
UNREAD_TIMEOUT_S = 30.0
"""Maximum time for which written bytes wait to be read, beyond the time that `MIN_READ_BYTES_PER_S` allows for them."""
MIN_READ_BYTES_PER_S = 16 * 1024
"""Rate below which an answer's reader uses up `UNREAD_TIMEOUT_S`."""
CLOSING_TIMEOUT_S = 10.0
"""Maximum time for which a closed connection waits for the rest of its answer to be read."""
MAX_UNREAD_BYTES = 256 * 1024 * 1024
"""Maximum size of the answers that wait in memory to be read; the largest ones are given up first."""
TICKS_PER_SWEEP = 20
"""Number of ticks of uvicorn, one each 0.1 s, between two searches for answers that are not read."""


class WouldBeUnencrypted(InvalidInput):
    """A server would listen for other machines without TLS, which nobody has accepted. The operator's fault."""


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


_protocol_log = logging.getLogger("epochal.runtime.http.http_server.protocol")
_protocol_log.setLevel(logging.ERROR)  # a warning for each malformed request would let strangers fill the log
_protocol_log.addFilter(_is_no_cancellation)  # nor a traceback for each request that waits when the server stops


def _nothing() -> None:
    """Do nothing, for a connection that has ended."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and limits of a server.

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
            raise WouldBeUnencrypted(
                f"--host {self.host} lets other machines connect, and tokens and results would travel unencrypted; "
                "give --tls-cert and --tls-key, put a TLS proxy in front, or accept it with --insecure"
            )

    def bind(self) -> socket.socket:
        """Return a listening socket. Raise `InvalidInput` if the address cannot be used."""
        try:
            return listening_socket(self.host, self.port)
        except OSError as error:
            raise InvalidInput(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}") from error

    def url_of(self, listener: socket.socket) -> str:
        """Return the base URL of a server on a socket from `bind`, as this machine reaches it."""
        port: int = listener.getsockname()[1]
        host = dialled_host(self.host, self.tls_cert)
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}"

    def server(self, app: Any, connections: ServerConnections | None = None) -> "HttpServer":
        """Return a server for an ASGI app, by default with as many connections as the process may have."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
            ssl_certfile=None if self.tls_cert is None else str(self.tls_cert),
            ssl_keyfile=None if self.tls_key is None else str(self.tls_key),
            server_header=False,
        )
        if connections is None:
            connections = ServerConnections(ConnectionLimits(connection_limit()))
        return HttpServer(config, connections)


class BoundedConnection(HttpToolsProtocol):
    """A connection whose bounds uvicorn lacks: slow and long heads, requests in advance, answers that nobody reads.

    A connection takes little memory, because thousands of them wait at a time: with slots for its own attributes, those
    of uvicorn are few enough for Python to keep their names once for all connections.
    """

    __slots__ = (
        "_connections", "_head_bytes", "_head_timer", "_patience_s", "_paused_bytes", "_paused_s", "_rest_timer",
        "_unread_timer", "_waiting", "_waiting_timer", "closing_since_s", "connection",
    )  # fmt: skip

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, connections: ServerConnections, connection: Connection
    ) -> None:
        super().__init__(config, server_state, {})
        self.logger = _protocol_log
        self.connection = connection
        self._connections = connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._waiting: tuple[Any, Any] | None = None
        """The request and the app of a stranger whose body has not arrived."""
        self._waiting_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._patience_s = UNREAD_TIMEOUT_S
        """Time left in which written bytes may wait to be read."""
        self._paused_s = 0.0
        self._paused_bytes = 0
        self.closing_since_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)
        self.connection.abort = transport.abort
        if not self.connection.is_held:  # it was shed while it was opened
            transport.abort()

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
        for timer in (self._unread_timer, self._waiting_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        self._connections.forget(self.connection)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        # Without these, reference counting frees everything; the collector of cycles runs too rarely for a flood.
        self.cycle = self.scope = self._waiting = None  # type: ignore[assignment]
        self.pipeline.clear()
        self.connection.abort = _nothing
        if getattr(self.transport, "_read_ready_cb", None) is not None:  # asyncio's own method, bound (until 3.12)
            self.transport._read_ready_cb = None  # type: ignore[attr-defined]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION_IN_SCOPE] = (self._connections, self.connection)  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self._connections.has_head(self.connection)
            offer(self.cycle)
        if len(self.pipeline) > MAX_PIPELINED_REQUESTS:
            self._connections.shed(self.connection, Shed.PIPELINED)
            raise ConnectionAbortedError("too many requests without reading an answer")  # ends the parsing

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._connections.has_asked(self.connection)
        self._start_waiting()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self.connection.peer is Peer.STRANGER and self._has_short_body():
            self._waiting = cycle, app
            self._waiting_timer = self.loop.call_later(SHORT_BODY_WAIT_S, self._start_waiting)
        else:
            super()._start_asgi_task(cycle, app)

    def _has_short_body(self) -> bool:
        fields = dict(self.headers)
        length = fields.get(b"content-length", b"0")
        is_counted = b"transfer-encoding" not in fields and length.isdigit() and len(length) < 20
        return is_counted and int(length) <= SHORT_BODY_BYTES and not self.expect_100_continue

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if self._waiting_timer is not None:
            self._waiting_timer.cancel()
            self._waiting_timer = None
        if waiting is not None:
            super()._start_asgi_task(*waiting)

    def on_response_complete(self) -> None:
        self._connections.has_answered(self.connection)
        if self.cycle is not None and self.cycle.response_complete and self.cycle.more_body:
            self._rest_timer = self.loop.call_later(REST_TIMEOUT_S, self._rest_is_late, self.cycle)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_s, self._paused_bytes = self.loop.time(), self.unread_bytes
        self._unread_timer = self.loop.call_later(max(0.0, self._patience_s), self._is_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
            read_bytes = self._paused_bytes - self.unread_bytes
            gained_s = read_bytes / MIN_READ_BYTES_PER_S - (self.loop.time() - self._paused_s)
            self._patience_s = min(UNREAD_TIMEOUT_S, self._patience_s + gained_s)

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that were written and have not left the process."""
        return self.transport.get_write_buffer_size()

    def abort_unread(self) -> None:
        """End the connection because its answers are not read."""
        if self.connection.is_held:
            self._connections.shed(self.connection, Shed.UNREAD)
        self.transport.abort()

    def _is_unread(self) -> None:
        self._unread_timer = None
        self.abort_unread()

    def _awaits_head(self) -> bool:
        """Return whether no request is being received or answered."""
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._awaits_head():
            self.transport.close()

    def _rest_is_late(self, cycle: RequestResponseCycle) -> None:
        self._rest_timer = None
        if cycle.more_body:
            self.transport.close()

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer(uvicorn.Server):
    """Uvicorn with bounded connections, and without its signal handlers: the command line handles signals."""

    def __init__(self, config: uvicorn.Config, connections: ServerConnections) -> None:
        super().__init__(config)
        self.connections = connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on the given sockets."""

        def protocol_of(connection: Connection) -> BoundedConnection:
            return BoundedConnection(self.config, self.server_state, self.connections, connection)

        acceptors = [Acceptor(each, self.connections, protocol_of, self.config.ssl) for each in sockets or ()]
        for acceptor in acceptors:
            acceptor.start()
        self.servers = acceptors  # type: ignore[assignment]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests under way within a bound, and end every connection."""
        await super().shutdown(sockets)
        for protocol in self._open():
            protocol.transport.abort()

    def _open(self) -> list[BoundedConnection]:
        return [protocol for protocol in self.server_state.connections if isinstance(protocol, BoundedConnection)]

    async def on_tick(self, counter: int) -> bool:
        """Do what is due every tenth of a second; return whether to stop."""
        if counter % TICKS_PER_SWEEP == 0:
            self._end_unread(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _end_unread(self, now_s: float) -> None:
        """End connections that were closed and are not read to their end, and those that keep too much unread."""
        unread: list[tuple[int, BoundedConnection]] = []
        for protocol in self._open():
            if protocol.transport.is_closing():
                protocol.closing_since_s = protocol.closing_since_s or now_s
                if now_s > protocol.closing_since_s + CLOSING_TIMEOUT_S:
                    protocol.abort_unread()
                    continue
            if protocol.unread_bytes:
                unread.append((protocol.unread_bytes, protocol))
        surplus_bytes = sum(size for size, _ in unread) - MAX_UNREAD_BYTES
        for size, protocol in sorted(unread, key=lambda entry: -entry[0]):
            if surplus_bytes <= 0:
                break
            surplus_bytes -= size
            protocol.abort_unread()


@contextlib.asynccontextmanager
async def serving_app(endpoint: Endpoint, app: Any, connections: ServerConnections | None = None) -> AsyncIterator[str]:
    """Serve an ASGI app until the context is left; yield the base URL. Raise `InvalidInput` if it cannot listen."""
    server = endpoint.server(app, connections)
    with endpoint.bind() as listener:
        async with asyncio.TaskGroup() as tasks:
            http = tasks.create_task(server.serve([listener]))
            try:
                yield endpoint.url_of(listener)
            finally:
                server.should_exit = True
                await asyncio.wait([http], timeout=SHUTDOWN_TIMEOUT_S + 1)
