"""HTTP/2 to the servers that support it, and the connections for it.

The rule kept here: HTTP/2 is offered (ALPN) where it helps, as was measured: over TLS, to servers that send one range
at a time and whose answers take `FAR_S` or longer to begin. Elsewhere HTTP/1.1 brings more bytes for less CPU. A server
that does not choose HTTP/2, or fails `MAX_FAILURES` times in a row over it, is spoken to over HTTP/1.1 from then on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from epochal.data_providers.sources.http.http1 import Body, BrokenConnection, Head
from epochal.data_providers.sources.http.http2 import Http1Required, Http2Connection, request_head
from epochal.data_providers.sources.http.target import HttpOrigin, Target

FAR_S = 0.025
"""Minimum time to an answer's first byte: below it, 16 connections with one range each bring more than HTTP/2 does."""
MAX_HTTP2_CONNECTIONS = 4
"""Maximum number of HTTP/2 connections, each to another server."""
MAX_FAILURES = 3
MAX_REFUSALS = 3
"""Maximum number of times in a row that a request is sent again because the server did not begin to answer it."""
MAX_SERVERS = 1024
"""Maximum number of servers that are remembered, the latest ones."""
IDLE_S = 15.0
"""Maximum time for which an unused connection is kept: some gateways forget them without a word."""

log = logging.getLogger(__name__)

Connect = Callable[[HttpOrigin], Awaitable[Http2Connection | None]]
"""Returns a connection that is ready, or None if the server does not choose HTTP/2."""


@dataclass(slots=True)
class _Server:
    """The facts known of a server.

    Attributes:
        nearest_s: the shortest time that an answer over HTTP/1.1 took to begin.
        is_http1_only: whether HTTP/2 is not offered any more.
        failures: number of failures over HTTP/2 in a row.
        failed_s: when the last of them was counted.
        opening: held while a connection is opened.
        connection: the HTTP/2 connection.
        unconnected: why the last one could not be opened, and when.
    """

    nearest_s: float
    is_http1_only: bool = False
    failures: int = 0
    failed_s: float = float("-inf")
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Http2Connection | None = None
    unconnected: tuple[str, float] = "", float("-inf")

    @property
    def is_in_use(self) -> bool:
        """Whether an HTTP/2 connection is being opened or has exchanges under way."""
        return self.opening.locked() or (self.connection is not None and not self.connection.is_idle)

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class Multiplexing:
    """HTTP/2 connections to any number of servers, one to each.

    Args:
        connect: opens one.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._servers: dict[HttpOrigin, _Server] = {}

    def helps(self, origin: HttpOrigin) -> bool:
        """Return whether a server that sends one range at a time is to be asked over HTTP/2."""
        server = self._servers.get(origin)
        return server is not None and not server.is_http1_only and server.nearest_s >= FAR_S

    def answered(self, origin: HttpOrigin, after_s: float) -> None:
        """Note how long an answer over HTTP/1.1 took to begin."""
        if origin.scheme != "https":
            return
        server = self._servers.get(origin)
        if server is not None:
            server.nearest_s = min(after_s, server.nearest_s)
            return
        if len(self._servers) >= MAX_SERVERS:
            unused = next((other for other, known in self._servers.items() if not known.is_in_use), None)
            if unused is None:
                return
            self._servers.pop(unused).close()
        self._servers[origin] = _Server(after_s)

    async def exchange(self, target: Target, fields: str, choose: Callable[[Head], Body]) -> Head | None:
        """Send a GET, and return the head of its answer; None if it is to be sent over HTTP/1.1.

        Raises:
            BrokenConnection, OSError: there is no whole answer.
            DataError: as raised by `choose`, or by the body.
        """
        head = request_head(target, fields)
        refusals = 0
        while self.helps(target.origin):
            server = self._servers[target.origin]
            begun_s = asyncio.get_running_loop().time()
            try:
                connection = await self._connection(target.origin, server, begun_s)
                if connection is None:
                    break
                answer = await connection.exchange(head, choose)
            except Http1Required:
                _give_up(target.origin, server, "it answers over HTTP/1.1 only")
                break
            except (BrokenConnection, OSError) as error:
                _count_failure(target.origin, server, begun_s, error)
                if not isinstance(error, BrokenConnection) or not error.is_unanswered:
                    raise
                refusals += 1
                if refusals > MAX_REFUSALS:
                    raise
            else:
                server.failures = 0
                return answer
        return None

    async def _connection(self, origin: HttpOrigin, server: _Server, begun_s: float) -> Http2Connection | None:
        """Return a connection to this server that takes requests, or None.

        Those that wait while one cannot be opened fail with it, instead of one after the other.
        """
        async with server.opening:
            held = server.connection
            if held is not None and held.is_open and not (held.is_idle and held.idle_s > IDLE_S):
                return held
            if held is not None and held.is_idle:
                held.abort()
            server.connection = None  # one that ends has closed itself after its last exchange
            if not self.helps(origin) or not self._has_room():
                return None
            reason, failed_s = server.unconnected
            if failed_s >= begun_s:
                raise BrokenConnection(reason)
            try:
                server.connection = await self._connect(origin)
            except (BrokenConnection, OSError) as error:
                reason = str(error) or "no connection in time"
                server.unconnected = reason, asyncio.get_running_loop().time()
                raise
            if server.connection is None:
                _give_up(origin, server, "it does not choose HTTP/2")
            return server.connection

    def _has_room(self) -> bool:
        """Close an unused connection to another server if there are as many as may be."""
        held = [server for server in self._servers.values() if server.connection is not None]
        if len(held) < MAX_HTTP2_CONNECTIONS:
            return True
        unused = next((server for server in held if not server.is_in_use), None)
        if unused is not None:
            unused.close()
        return unused is not None


def _count_failure(origin: HttpOrigin, server: _Server, begun_s: float, error: Exception) -> None:
    """Count failures in a row; those of exchanges that were under way at the same time count once."""
    if begun_s < server.failed_s:
        return
    server.failures += 1
    server.failed_s = asyncio.get_running_loop().time()
    if server.failures >= MAX_FAILURES:
        _give_up(origin, server, f"{server.failures} failures in a row, the last {type(error).__name__}")


def _give_up(origin: HttpOrigin, server: _Server, reason: str) -> None:
    if not server.is_http1_only:
        server.is_http1_only = True
        log.info("http_1_1_only", extra={"server": origin.netloc, "reason": reason})
