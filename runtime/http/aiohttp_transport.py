"""A transport of httpx over `aiohttp`: httpx is what callers and tests meet, `aiohttp` connects, sends and receives.

The rules kept here: errors are httpx's, but for those of this project, which pass unchanged; a body arrives as it was
sent, without decoding; a redirect's body is never read; a request whose body makes no progress ends.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
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
        if self._session is None:  # which needs a running loop
            self._session = open_session(self._reach, self._tls, connections=self._connections)
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        asked = request.url.copy_with(userinfo=b"") if request.url.userinfo else request.url
        url = URL(str(asked), encoded=True)
        headers = [pair for pair in request.headers.multi_items() if pair[0] != "transfer-encoding"]
        with _as_httpx(request):
            async with _Sending(request, timeouts.get("write")) as sending:
                answer = await self._session.request(
                    request.method,
                    url,
                    headers=headers,
                    skip_auto_headers=_AUTO_HEADERS,
                    data=sending.body,
                    allow_redirects=False,
                    proxy=self._proxies.of(url),
                    read_bufsize=READ_BYTES,
                    timeout=aiohttp.ClientTimeout(
                        connect=timeouts.get("pool"),
                        sock_connect=timeouts.get("connect"),
                        sock_read=timeouts.get("read"),
                    ),
                )
        found = httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(request, answer))
        if found.has_redirect_location:  # httpx would read its body and decode it, whatever its size
            answer.close()
            return httpx.Response(answer.status, headers={"Location": found.headers["Location"]})
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


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

    def __init__(self, request: httpx.Request, answer: aiohttp.ClientResponse) -> None:
        self._request, self._answer = request, answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            async for piece in self._answer.content.iter_any():
                yield piece

    async def aclose(self) -> None:
        self._answer.close()


@contextmanager
def _as_httpx(request: httpx.Request) -> Iterator[None]:
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
