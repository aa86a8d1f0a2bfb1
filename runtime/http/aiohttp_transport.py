"""A transport of httpx over `aiohttp`: httpx is what callers and tests meet, `aiohttp` connects, sends and receives.

The rules kept here: errors are httpx's, but for those of this project, which pass unchanged; a body arrives as it was
sent, without decoding; a redirect's body is never read; a request whose body makes no progress ends.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
from yarl import URL

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.environment_proxies import Proxies
from epochal.runtime.http.session import Trust, open_session, tls_context
from epochal.state.errors import EpochalError

_SILENT = "the server disconnected without sending a response"
READ_BYTES = 512 * 1024
"""Number of bytes of a body that wait to be read, before the sender has to wait."""
_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that `aiohttp` would add; httpx has decided about them."""
_ERRORS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientProxyConnectionError, httpx.ProxyError),
    (aiohttp.ClientHttpProxyError, httpx.ProxyError),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientResponseError, httpx.RemoteProtocolError),
    (aiohttp.ClientPayloadError, httpx.RemoteProtocolError),
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    (aiohttp.ClientError, httpx.ReadError),
    (OSError, httpx.ReadError),
)
"""Errors of `aiohttp`, each before those that it is a kind of, and what they are to httpx."""


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A request before httpx adds to it, which takes longer than to send it. The URL is absolute."""

    method: str
    url: str
    limits: httpx.Timeout
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[bytes] | None = None


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends requests to servers that may be connected, by way of the proxies that the environment names.

    Args:
        trust: in whose certificates.
        reach: the addresses that may be connected; None for all.
        connections: maximum number of them at a time; further requests wait.

    Raises:
        InvalidInput: the certificates or a proxy cannot be used; the user's fault.
    """

    def __init__(self, trust: Trust, reach: Reach | None, connections: int) -> None:
        self._tls, self._reach, self._connections = tls_context(trust), reach, connections
        self._proxies = Proxies()
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer, its body not yet read. Raise `NotAllowed` if its server may not be connected."""
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        asked = request.url.copy_with(userinfo=b"") if request.url.userinfo else request.url
        headers = [pair for pair in request.headers.multi_items() if pair[0] != "transfer-encoding"]
        limits = aiohttp.ClientTimeout(
            connect=timeouts.get("pool"), sock_connect=timeouts.get("connect"), sock_read=timeouts.get("read")
        )
        with _as_httpx(request):
            async with _Sending(request, timeouts.get("write")) as sending:
                answer = await self._asked(request.method, str(asked), headers, sending.body, limits)
        return _response(request, answer)

    async def begun(self, asked: PlainRequest, headers: Mapping[str, str]) -> httpx.Response:
        """Return what `handle_async_request` does, and raise as it, without what httpx does for a request.

        Args:
            asked: without a body, or with one of bytes.
            headers: of all requests, beside its own.
        """
        limits, body = asked.limits, asked.body
        within = aiohttp.ClientTimeout(connect=limits.pool, sock_connect=limits.connect, sock_read=limits.read)
        assert body is None or isinstance(body, bytes)
        with _as_httpx(None):
            answer = await self._asked(asked.method, asked.url, {**headers, **asked.headers}, body, within)
        return _response(None, answer)

    async def _asked(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | list[tuple[str, str]],
        body: bytes | AsyncGenerator[bytes, None] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if self._session is None:  # which needs a running loop
            self._session = open_session(self._reach, self._tls, connections=self._connections)
        url = URL(address, encoded=True)
        return await self._session.request(
            method,
            url,
            headers=headers,
            skip_auto_headers=_AUTO_HEADERS,
            data=body,
            allow_redirects=False,
            proxy=self._proxies.of(url),
            read_bufsize=READ_BYTES,
            timeout=limits,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


class Client(httpx.AsyncClient):
    """A client of httpx, whose plain requests `AiohttpTransport` answers without it."""

    def __init__(self, transport: httpx.AsyncBaseTransport, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        self._direct = transport if isinstance(transport, AiohttpTransport) else None
        self._always = dict(self.headers)

    async def begun(self, asked: PlainRequest) -> httpx.Response | None:
        """Return the answer, its body not yet read; None if httpx has to ask: of cookies, passwords, redirections."""
        if self._direct is None or self.cookies or "@" in asked.url or not isinstance(asked.body, bytes | None):
            return None
        answer = await self._direct.begun(asked, self._always)
        if "Set-Cookie" in answer.headers:
            answer.request = httpx.Request(asked.method, asked.url)
            self.cookies.extract_cookies(answer)
        return None if answer.has_redirect_location else answer


class _Sending:
    """A request while it is sent: its body, and the time limit of each piece of it, until the answer begins."""

    def __init__(self, request: httpx.Request, piece_s: float | None) -> None:
        self._pieces, self._piece_s = request.stream, piece_s
        self._limit: asyncio.Timeout | None = asyncio.timeout(None)
        is_whole = isinstance(request.stream, httpx.ByteStream)
        self.body: bytes | AsyncGenerator[bytes, None] | None = None
        self.body = (b"".join(request.stream) or None) if is_whole else self._streamed()  # type: ignore[arg-type]

    async def __aenter__(self) -> "_Sending":
        assert self._limit is not None
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        limit, self._limit = self._limit, None
        assert limit is not None
        try:
            await limit.__aexit__(*error)
        except TimeoutError as late:
            raise httpx.WriteTimeout(f"nothing was taken for {self._piece_s:g} s") from late

    async def _streamed(self) -> AsyncGenerator[bytes, None]:
        assert isinstance(self._pieces, httpx.AsyncByteStream)
        async for piece in self._pieces:
            self._allow(self._piece_s)
            yield piece
        self._allow(None)

    def _allow(self, time_s: float | None) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None if time_s is None else asyncio.get_running_loop().time() + time_s)


class _Body(httpx.AsyncByteStream):
    """The body of an answer as it arrives. Closing it frees the connection, which is kept if all of it was read."""

    def __init__(self, request: httpx.Request | None, answer: aiohttp.ClientResponse) -> None:
        self._request, self._answer = request, answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            async for piece in self._answer.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        self._answer.close()


def _response(request: httpx.Request | None, answer: aiohttp.ClientResponse) -> httpx.Response:
    """Return an answer whose body is not yet read."""
    found = httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(request, answer))
    if found.has_redirect_location:  # httpx would read its body and decode it, whatever its size
        answer.close()
        return httpx.Response(answer.status, headers={"Location": found.headers["Location"]})
    return found


@contextmanager
def _as_httpx(request: httpx.Request | None) -> Iterator[None]:
    """Raise errors of `aiohttp` as httpx's."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error.__cause__, EpochalError):  # of a body that cannot be read
            raise error.__cause__ from None
        kind = next(kind for found, kind in _ERRORS if isinstance(error, found))
        cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
        text = _SILENT if isinstance(error, aiohttp.ServerDisconnectedError) else str(cause)
        raise kind(text or type(cause).__name__, request=request) from cause
