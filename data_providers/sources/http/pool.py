"""The connections of one source: few, kept while they are used, direct or through a proxy, with TLS.

The rules kept here: certificates are verified; a connection that was closed while it was idle costs another one and not
an attempt; connecting has a bound. How many exchanges there are at a time is the caller's choice.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import lru_cache, partial

import httpx

from data_providers.sources.http.connecting import connected_socket
from data_providers.sources.http.connection import (
    SCRATCH_BYTES,
    Body,
    BrokenConnection,
    Discarded,
    Head,
    HttpConnection,
)
from data_providers.sources.http.target import HttpOrigin, Proxies, Proxy, Target

MAX_CONNECTIONS = 16
"""Maximum number of connections, those under way included, beyond which an idle one is closed for a new one."""
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
IDLE_S = 15.0
"""Maximum time for which an unused connection is kept: some gateways forget them without a word."""


@lru_cache(maxsize=1)
def trusted() -> ssl.SSLContext:
    """Return the trusted certificates (also `SSL_CERT_FILE`, `SSL_CERT_DIR`), which take long to read."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class ConnectionPool:
    """Connections to any number of servers. `InvalidInput` if the environment names a proxy that cannot be used."""

    def __init__(self) -> None:
        self._proxies = Proxies()
        self._idle: dict[HttpOrigin, list[HttpConnection]] = {}
        self._active: set[HttpConnection] = set()
        self._open_ones: set[HttpConnection] = set()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._closed = False
        self.requests = 0
        """Number of requests that were sent."""
        self.received_bytes = 0
        """Number of bytes that came, heads included."""

    async def exchange(self, target: Target, fields: str, choose: Callable[[Head], Body]) -> Head:
        """Send a GET with these header fields (each with its line end), and return the head of its answer.

        Raises:
            BrokenConnection, OSError (also `ssl.SSLError`): there is no whole answer.
            DataError: as raised by `choose`, or by the body.
        """
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
                return await connection.exchange(request, choose)
            except BrokenConnection as error:
                if not (was_used and error.is_unanswered):
                    raise
            finally:
                self._active.discard(connection)
                self.received_bytes += connection.received_bytes - before
                self._give_back(target.origin, connection)

    async def aclose(self) -> None:
        """Close every connection, and open none any more."""
        self._closed = True
        for connection in self._open_ones:
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
                return await self._open(origin)
            connection = await self._open(proxy.origin)
            if origin.scheme == "http":
                return connection
            try:
                await _tunnel(connection, origin, proxy)
                loop = asyncio.get_running_loop()
                connection.attach(
                    await loop.start_tls(  # type: ignore[arg-type]  # None only if the transport is closed
                        connection.transport, connection, trusted(), server_hostname=origin.host
                    )
                )
            except BaseException:
                connection.abort()
                raise
            return connection

    async def _open(self, origin: HttpOrigin) -> HttpConnection:
        is_tls = origin.scheme == "https"
        connected = await connected_socket(origin.host, origin.port)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                partial(HttpConnection, self._scratch),
                sock=connected,
                ssl=trusted() if is_tls else None,
                server_hostname=origin.host if is_tls else None,
            )
        except BaseException:
            connected.close()
            raise
        self._open_ones.add(connection)
        connection.closed.add_done_callback(lambda _: self._open_ones.discard(connection))
        return connection


async def _tunnel(connection: HttpConnection, origin: HttpOrigin, proxy: Proxy) -> None:
    """Ask a proxy for a connection to a server. Raise `BrokenConnection` if it refuses."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    fields = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    request = f"CONNECT {host}:{origin.port} HTTP/1.1\r\nHost: {host}:{origin.port}\r\n{fields}\r\n"
    head = await connection.exchange(request.encode("latin-1"), lambda _: Discarded(), is_tunnel=True)
    if head.status // 100 != 2:
        raise BrokenConnection(f"the proxy {proxy.origin.netloc} answered {head.status} {head.reason}")
