"""A transport of httpx for short requests to one server: HTTP/1.1 on asyncio's own connections.

The general transport spends several times the work of the exchange itself on each request. This one knows requests
whose body is in memory and answers that fit there, and nothing else: a request is sent by it only if its sender says
that its answer is short (`SHORT`); all others, and all that go by way of a proxy, are the general transport's.

The rule kept here: a connection is used again only after a whole exchange, and an answer is what httpx takes it for, or
an error: answers that RFC 9112 calls invalid, of which httpx takes some, are errors. Errors are httpx's.
"""

import asyncio
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httptools
import httpx

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import connected_socket
from epochal.runtime.http import answer_bodies

SHORT: Mapping[str, Any] = MappingProxyType({"epochal.short": True})
"""The extensions of a request whose answer fits into memory."""
MAX_HEAD_BYTES = 100 * 1024
"""Maximum size of an answer's head with those of interim answers before it, and of what frames its body: httpx's."""
_SHORT = "epochal.short"
_SILENT = "Server disconnected without sending a response."
_INTERIM = range(100, 200)
_FIRST_STATUS, _OTHER_PROTOCOL = 100, 101
_TRANSFER, _CHUNKED = b"transfer-encoding", b"chunked"
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
"""Methods whose answers have the body that their heads announce."""
_WITHOUT_BODY = frozenset({204, 304})


def has_proxies() -> bool:
    """Return whether the environment names a proxy."""
    return bool({"http", "https", "all"} & set(urllib.request.getproxies()))


def is_short(request: httpx.Request) -> bool:
    """Return whether the request is marked as one with a short answer, and its body is in memory."""
    is_told = bool(request.extensions.get(_SHORT)) and request.method in _METHODS
    return is_told and isinstance(request.stream, httpx.ByteStream)


class LeanTransport(httpx.AsyncBaseTransport):
    """Sends short requests itself, and others by a general transport.

    Args:
        general: sends what this one does not; it is closed with this one.
        limits: of the connections for short requests.
        context: for TLS.
        reach: the addresses that may be connected; None for all.
    """

    def __init__(
        self,
        general: httpx.AsyncBaseTransport,
        limits: httpx.Limits,
        context: ssl.SSLContext,
        reach: Reach | None = None,
    ) -> None:
        self._reach = reach
        self._general = general
        self._context = context
        self._keep_s = limits.keepalive_expiry if limits.keepalive_expiry is not None else float("inf")
        self._places = asyncio.Semaphore(limits.max_connections or 100)
        self._kept: deque[tuple[float, tuple[str, str, int], _Line]] = deque()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to a request."""
        if not is_short(request):
            return await _without_body_if_redirect(await self._general.handle_async_request(request))
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        await self._place(request, timeouts.get("pool"))
        try:
            return await self._answered(request, timeouts)
        finally:
            self._places.release()

    async def aclose(self) -> None:
        """Close all connections."""
        while self._kept:
            self._kept.popleft()[2].close()
        await self._general.aclose()

    async def _place(self, request: httpx.Request, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise httpx.PoolTimeout("all connections are in use", request=request) from error

    async def _answered(self, request: httpx.Request, timeouts: Mapping[str, float | None]) -> httpx.Response:
        url = request.url
        place = url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
        line = self._kept_line(place) or await self._connected(request, place, timeouts.get("connect"))
        try:
            answer = await line.exchange(_encoded(request), request, timeouts.get("read"))
        except BaseException:
            line.close()
            raise
        if answer.is_reusable:
            self._kept.append((time.monotonic(), place, line))
        else:
            line.close()
        return answer_bodies.whole_response(answer.status, httpx.Headers(answer.headers), answer.body)

    def _kept_line(self, place: tuple[str, str, int]) -> "_Line | None":
        for _ in range(len(self._kept)):
            since_s, of, line = self._kept.pop()
            if line.is_open and of == place and time.monotonic() < since_s + self._keep_s:
                return line
            if line.is_open and of != place:
                self._kept.appendleft((since_s, of, line))
            else:
                line.close()
        return None

    async def _connected(self, request: httpx.Request, place: tuple[str, str, int], timeout_s: float | None) -> "_Line":
        scheme, host, port = place
        context = self._context if scheme == "https" else None
        try:
            async with asyncio.timeout(timeout_s):
                connected = await connected_socket(host, port, reach=self._reach)
                name = host if context is not None else None
                loop = asyncio.get_running_loop()
                _, line = await loop.create_connection(_Line, sock=connected, ssl=context, server_hostname=name)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeout_s:g} s", request=request) from error
        except OSError as error:  # ssl.SSLError is one
            raise httpx.ConnectError(str(error), request=request) from error
        return line


async def _without_body_if_redirect(answer: httpx.Response) -> httpx.Response:
    """Return the answer. The body of a redirect, which httpx would read and decode whatever its size, is dropped."""
    if not answer.has_redirect_location:
        return answer
    await answer.aclose()
    return httpx.Response(answer.status_code, headers={"Location": answer.headers["Location"]})


def _encoded(request: httpx.Request) -> bytes:
    """Return the bytes of a request whose body is in memory."""
    head = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    head += [b"%s: %s" % field for field in request.headers.raw]
    assert isinstance(request.stream, httpx.ByteStream), "only such requests are sent here"
    return b"\r\n".join((*head, b"", b"".join(request.stream)))  # a request that follows a redirect has no `content`


class _Answer:
    """An answer that is being received; httptools calls its `on_` methods."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self.is_begun = self.has_head = self.is_complete = self.is_reusable = self.ends_with_connection = False
        self.status = 0
        self.parser = httptools.HttpResponseParser(self)
        self._other_bytes = 0
        """Number of bytes since the head was complete, or something of the body arrived."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def feed(self, data: bytes) -> None:
        """Take some bytes. Raise `httpx.RemoteProtocolError` if they are no answer; what follows one is not read."""
        self._other_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.is_reusable = False
            if self.is_complete:
                return
            cause = error.__context__
            raise (
                cause if isinstance(cause, httpx.RemoteProtocolError) else httpx.RemoteProtocolError(str(error))
            ) from None
        if self._other_bytes > MAX_HEAD_BYTES and not self.is_complete:
            raise _long_head()

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise httpx.RemoteProtocolError("an answer that nobody asked for")  # `feed` takes note
        self.is_begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # the fields behind a body are nobody's
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status < _FIRST_STATUS or self.status == _OTHER_PROTOCOL:
            raise httpx.RemoteProtocolError(f"an answer with the status {self.status:03}")
        if self.status in _INTERIM:
            return
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise _long_head()
        self.has_head, self._other_bytes = True, 0
        fields = {name.lower(): value for name, value in self.headers}
        if fields.get(_TRANSFER, _CHUNKED).lower() != _CHUNKED:
            raise httpx.RemoteProtocolError("an answer with another transfer encoding than chunked")
        self.ends_with_connection = not (self.status in _WITHOUT_BODY or fields.keys() & {b"content-length", _TRANSFER})

    def on_body(self, body: bytes) -> None:
        self._other_bytes = 0
        self.size_bytes += len(body)
        if self.size_bytes > answer_bodies.MAX_ANSWER_BYTES:
            raise answer_bodies.too_long()
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status in _INTERIM:
            self.headers.clear()
            return
        self.is_complete, self.is_reusable = True, self.parser.should_keep_alive()


def _long_head() -> httpx.RemoteProtocolError:
    return httpx.RemoteProtocolError(f"an answer with a head of more than {MAX_HEAD_BYTES} bytes")


class _Line(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer = _Answer()
        self._waiting: asyncio.Future[_Answer] | None = None
        self._request: httpx.Request | None = None
        self._heard_s = 0.0
        self._unsent_bytes = 0
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True

    async def exchange(self, data: bytes, request: httpx.Request, read_s: float | None) -> _Answer:
        """Send a request, and return its answer. Raise `httpx.TransportError` if there is no whole one."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer, self._request, self._waiting = _Answer(), request, loop.create_future()
        self._heard_s = loop.time()
        watch = None if read_s is None else _Watch(loop, self, read_s)
        try:
            if self.is_open:
                self._transport.write(data)
                self._unsent_bytes = self._transport.get_write_buffer_size()
            else:
                self._end(None)
            return await self._waiting
        finally:
            self._waiting = None
            if watch is not None:
                watch.cancel()

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        answer = self._answer
        if self._waiting is None or self._waiting.done():  # it says something that nobody asked for
            answer.is_reusable = False
            self.close()
            return
        try:
            answer.feed(data)
        except httpx.RemoteProtocolError as error:
            self._fail(error)
            return
        if answer.is_complete:
            self._waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        """Let the exchange end with the connection."""
        answer, waiting = self._answer, self._waiting
        if waiting is None or waiting.done():
            return
        if answer.ends_with_connection and error is None:
            waiting.set_result(answer)
        elif answer.is_begun:
            self._fail(httpx.RemoteProtocolError("the connection ended within an answer"))
        else:
            self._fail(httpx.RemoteProtocolError(_SILENT), error)

    def _fail(self, error: httpx.TransportError, cause: Exception | None = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            error.__cause__ = cause
            if self._request is not None:
                error.request = self._request
            self._waiting.set_exception(error)

    def silence_s(self, now_s: float) -> float:
        """Return the seconds since anything arrived, or something of the request was seen to be sent."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._heard_s = now_s
        self._unsent_bytes = unsent_bytes
        return now_s - self._heard_s

    def is_silent(self, timeout_s: float) -> None:
        """End the exchange because nothing has arrived for so long."""
        self._fail(httpx.ReadTimeout(f"nothing arrived for {timeout_s:g} s"))

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


class _Watch:
    """Ends an exchange in which nothing arrives for a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, line: _Line, timeout_s: float) -> None:
        self._loop = loop
        self._line = line
        self._timeout_s = timeout_s
        self._timer = loop.call_later(timeout_s, self._look)

    def cancel(self) -> None:
        """Watch no longer."""
        self._timer.cancel()

    def _look(self) -> None:
        left_s = self._timeout_s - self._line.silence_s(self._loop.time())
        if left_s <= 0:
            self._line.is_silent(self._timeout_s)
        else:
            self._timer = self._loop.call_later(left_s, self._look)
