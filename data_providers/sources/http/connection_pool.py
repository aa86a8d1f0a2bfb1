"""The connections of one source: few, kept while they are used, direct or through a proxy, with TLS.

The rules kept here: certificates are verified; a connection that was closed while it was idle costs another one and not
an attempt; connecting has a bound; there are at most `MAX_CONNECTIONS` exchanges over HTTP/1.1 at a time.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import lru_cache

import httpx

from epochal.data_providers.sources.http.http1 import (
    SCRATCH_BYTES,
    Body,
    BrokenConnection,
    Discarded,
    Head,
    HttpConnection,
)
from epochal.data_providers.sources.http.http2 import Http2Connection
from epochal.data_providers.sources.http.multiplexing import IDLE_S, Multiplexing
from epochal.data_providers.sources.http.target import HttpOrigin, Proxies, Proxy, Target
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import check_behind_proxy, connected_socket

MAX_CONNECTIONS = 16
"""Maximum number of connections, those under way included, beyond which an idle one is closed for a new one."""
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
MAX_EARLY_BYTES = 64 * 1024
"""Maximum number of bytes that a server may send before it is known which protocol it has chosen."""


@lru_cache(maxsize=2)
def trusted(*, offers_http2: bool = False) -> ssl.SSLContext:
    """Return the trusted certificates (also `SSL_CERT_FILE`, `SSL_CERT_DIR`), which take long to read."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["h2", "http/1.1"] if offers_http2 else ["http/1.1"])
    return context


class ConnectionPool:
    """Connections to any number of servers. `InvalidInput` if the environment names a proxy that cannot be used.

    Args:
        reach: the addresses that may be connected; None for all. A proxy of the environment is connected wherever it
            is, and asked only for servers that may be, as far as their names are known here.
    """

    def __init__(self, reach: Reach | None = None) -> None:
        self._reach = reach
        self._proxies = Proxies()
        self._idle: dict[HttpOrigin, list[HttpConnection]] = {}
        self._active: set[HttpConnection] = set()
        self._open_ones: set[HttpConnection | Http2Connection] = set()
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._multiplexing = Multiplexing(self._connected_http2)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._closed = False
        self.requests = 0
        """Number of requests that were sent."""
        self.received_bytes = 0
        """Number of bytes that came, heads included."""

    def multiplexes(self, origin: HttpOrigin) -> bool:
        """Return whether a server that sends one range at a time is asked over HTTP/2."""
        return self._multiplexing.helps(origin)

    async def exchange(
        self, target: Target, fields: str, choose: Callable[[Head], Body], *, is_single: bool = False
    ) -> Head:
        """Send a GET with these header fields (each with its line end), and return the head of its answer.

        Args:
            target: what is requested.
            fields: of the request.
            choose: returns what takes the body; it may raise `DataError`.
            is_single: whether the server sends one range at a time, so that HTTP/2 may help.

        Raises:
            BrokenConnection, OSError (also `ssl.SSLError`): there is no whole answer.
            NotAllowed: the server may not be connected.
            DataError: as raised by `choose`, or by the body.
        """
        if is_single and self._multiplexing.helps(target.origin):
            self.requests += 1
            head = await self._multiplexing.exchange(target, fields, choose)
            if head is not None:
                return head
            self.requests -= 1
        async with self._turns:
            return await self._exchange(target, fields, choose)

    async def _exchange(self, target: Target, fields: str, choose: Callable[[Head], Body]) -> Head:
        proxy = self._proxies.of(target.origin)
        place = target.path
        if proxy is not None and target.origin.scheme == "http":
            place = f"http://{target.origin.netloc}{target.path}"
            fields += f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        request = f"GET {place} HTTP/1.1\r\nHost: {target.origin.netloc}\r\n{fields}\r\n".encode("latin-1")
        while True:
            connection = self._idle_one(target.origin) or await self._connected(target.origin, proxy)
            was_used, before = connection.is_used, connection.received_bytes
            self._active.add(connection)
            try:
                self.requests += 1
                head = await connection.exchange(request, choose)
                self._multiplexing.answered(target.origin, connection.answered_after_s)
                return head
            except BrokenConnection as error:
                if not (was_used and error.is_unanswered):
                    raise
            finally:
                self._active.discard(connection)
                self.received_bytes += connection.received_bytes - before
                self._give_back(target.origin, connection)

    async def aclose(self) -> None:
        """Close every connection, and open no further one."""
        self._closed = True
        for connection in list(self._open_ones):
            connection.abort()
        self._idle.clear()
        if self._open_ones:
            await asyncio.wait([connection.closed for connection in self._open_ones], timeout=CLOSE_TIMEOUT_S)

    def _idle_one(self, origin: HttpOrigin) -> HttpConnection | None:
        idle = self._idle.get(origin, [])
        now_s = asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            if connection.is_reusable and now_s - connection.idle_since_s < IDLE_S:
                return connection
            connection.abort()
        return None

    def _give_back(self, origin: HttpOrigin, connection: HttpConnection) -> None:
        if not connection.is_reusable:
            connection.abort()
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.setdefault(origin, []).append(connection)

    def _make_room(self) -> None:
        """Close the connection that has been idle the longest if there are as many as may be."""
        while len(self._active) + sum(map(len, self._idle.values())) >= MAX_CONNECTIONS:
            found = [(held.idle_since_s, origin) for origin, idle in self._idle.items() for held in idle]
            if not found:
                return
            _, origin = min(found, key=lambda one: one[0])
            self._idle[origin].pop(0).abort()
            if not self._idle[origin]:
                del self._idle[origin]

    async def _connected(self, origin: HttpOrigin, proxy: Proxy | None) -> HttpConnection:
        self._make_room()
        if self._closed:
            raise BrokenConnection("the source was closed")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if proxy is None:
                return await self._open(origin, self._reach)
            await check_behind_proxy(origin.host, origin.port, self._reach)
            connection = await self._open(proxy.origin, None)
            if origin.scheme == "https":
                await self._through(connection, origin, proxy, connection, trusted())
            return connection

    async def _open(self, origin: HttpOrigin, reach: Reach | None) -> HttpConnection:
        connection = HttpConnection(self._scratch)
        await self._dialled(origin, connection, trusted() if origin.scheme == "https" else None, reach)
        self._keep(connection)
        return connection

    def _keep(self, connection: HttpConnection | Http2Connection) -> None:
        self._open_ones.add(connection)
        connection.closed.add_done_callback(lambda _: self._open_ones.discard(connection))

    async def _dialled(
        self, origin: HttpOrigin, speaker: asyncio.BaseProtocol, context: ssl.SSLContext | None, reach: Reach | None
    ) -> asyncio.Transport:
        connected = await connected_socket(origin.host, origin.port, reach=reach)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: speaker,
                sock=connected,
                ssl=context,
                server_hostname=None if context is None else origin.host,
            )
        except BaseException:
            connected.close()
            raise
        return transport

    async def _through(
        self,
        connection: HttpConnection,
        origin: HttpOrigin,
        proxy: Proxy,
        speaker: "HttpConnection | _Undecided",
        context: ssl.SSLContext,
    ) -> None:
        """Let a proxy connect to a server, and speak TLS with that."""
        try:
            await _tunnel(connection, origin, proxy)
            transport = await asyncio.get_running_loop().start_tls(
                connection.transport, speaker, context, server_hostname=origin.host
            )
            if transport is None:  # it was closed meanwhile
                raise BrokenConnection("the proxy closed the connection")
            speaker.attach(transport)
        except BaseException:
            connection.abort()
            raise

    async def _connected_http2(self, origin: HttpOrigin) -> Http2Connection | None:
        """Return a connection that is ready, or None if the server does not choose HTTP/2."""
        if self._closed:
            raise BrokenConnection("the source was closed")
        proxy = self._proxies.of(origin)
        undecided, context = _Undecided(), trusted(offers_http2=True)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if proxy is None:
                undecided.attach(await self._dialled(origin, undecided, context, self._reach))
            else:
                await check_behind_proxy(origin.host, origin.port, self._reach)
                way = await self._open(proxy.origin, None)
                try:
                    await self._through(way, origin, proxy, undecided, context)
                finally:  # from now on others are told when it closes
                    self._open_ones.discard(way)
            connection = undecided.decided(Http2Connection(self._count))
            if connection is None:
                return None
            self._keep(connection)
            try:
                await connection.ready()
            except BaseException:
                connection.abort()
                raise
            return connection

    def _count(self, received: int) -> None:
        self.received_bytes += received


class _Undecided(asyncio.Protocol):
    """Holds what comes over a connection until it is known which protocol the server has chosen."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        self._lost: list[Exception | None] = []

    def attach(self, transport: asyncio.Transport) -> None:
        """Take the transport, which speaks TLS already."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hold bytes."""
        self._held += data
        if len(self._held) > MAX_EARLY_BYTES and self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection was lost."""
        self._lost.append(exc)

    def decided(self, connection: Http2Connection) -> Http2Connection | None:
        """Give the connection over if the server has chosen HTTP/2; otherwise close it and return None."""
        assert self._transport is not None
        spoken = self._transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if spoken != "h2":
            self._transport.abort()
            return None
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if self._held:
            connection.data_received(bytes(self._held))
        if self._lost:
            connection.connection_lost(self._lost[0])
        return connection


async def _tunnel(connection: HttpConnection, origin: HttpOrigin, proxy: Proxy) -> None:
    """Ask a proxy for a connection to a server. Raise `BrokenConnection` if it refuses."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    fields = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    request = f"CONNECT {host}:{origin.port} HTTP/1.1\r\nHost: {host}:{origin.port}\r\n{fields}\r\n"
    head = await connection.exchange(request.encode("latin-1"), lambda _: Discarded(), is_tunnel=True)
    if head.status // 100 != 2:
        raise BrokenConnection(f"the proxy {proxy.origin.netloc} answered {head.status} {head.reason}")
