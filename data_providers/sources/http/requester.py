"""Sends the requests of one source: own headers to own servers, redirects, time limits, and errors as `DataError`s.

The rules kept here: the headers of `HttpOptions` go to the location's own servers only, each to its own host, and over
https only; a URL's user and password go to that URL's server only;
at most `MAX_REDIRECTS` redirects are followed, and where they led is remembered for `REDIRECT_KEPT_S`; every answer has
a time limit; messages show neither the user, password or query of a URL nor the place to which a server redirects.
"""

import asyncio
import base64
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote

import aiohttp
import httpx
from aiohttp import ClientResponse
from yarl import URL

from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.environment_proxies import Proxies
from epochal.runtime.http.session import open_session
from epochal.state.config.data_location import MAX_PORT
from epochal.state.errors import DataError

_SCHEMES = ("http", "https")
MAX_CONNECTIONS = 16
"""Maximum number of requests under way at a time, each over its own connection."""
ANSWER_TIMEOUT_S = 60.0
"""Time limit for one answer from its request to its last byte; the bytes received until then are kept."""
SILENCE_TIMEOUT_S = 20.0
"""Maximum time without a byte of the answer."""
MAX_REDIRECTS = 5
REDIRECT_KEPT_S = 60.0
"""Time for which requests go to the last redirect's target; after an answer without the bytes it is asked again."""
MAX_KEPT_REDIRECTS = 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
WITH_BYTES = frozenset({200, 206})
_DEFAULT_FIELDS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "epochal"}
_NOT_THE_USERS = frozenset({"range", "connection", "content-length", "transfer-encoding", "host"})


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that can be requested: parsed once, as it is sent and as messages show it.

    Attributes:
        url: all of it.
        sent: the URL without user and password.
        authorization: of the URL's user and password; "" without.
        shown: the URL without what may be secret, for messages.
        server: scheme, and host with its port unless that is the scheme's own.
    """

    url: httpx.URL = field(repr=False)
    sent: URL = field(repr=False)
    authorization: str = field(repr=False)
    shown: str
    server: tuple[str, str]

    @classmethod
    def of(cls, url: httpx.URL) -> "Target":
        """Return the target of a URL. Raise `httpx.InvalidURL` if it cannot be requested."""
        if url.scheme not in _SCHEMES:
            raise httpx.InvalidURL(f"the scheme {url.scheme!r} is not http or https")
        if not url.host or not 0 < (1 if url.port is None else url.port) <= MAX_PORT:
            raise httpx.InvalidURL(f"there is no port {url.port}" if url.host else "it names no server")
        sent = URL(str(url.copy_with(userinfo=b"", fragment=None)), encoded=True)
        shown = str(url.copy_with(userinfo=b"", query=None, fragment=None))
        return cls(url, sent, _basic(url), shown, (url.scheme, url.netloc.decode("ascii").lower()))


def _basic(url: httpx.URL) -> str:
    if not url.userinfo:
        return ""
    return "Basic " + base64.b64encode(f"{unquote(url.username)}:{unquote(url.password)}".encode()).decode("ascii")


class Body(Protocol):
    """Takes the bytes of a body. Its methods may raise `DataError`, which ends the answer."""

    def feed(self, data: memoryview) -> None:
        """Take the next bytes, which are valid only during the call."""
        ...

    def finish(self) -> None:
        """Note the body's end."""
        ...


Choose = Callable[[ClientResponse], Body | None]
"""Returns what takes the body of an answer; None if nobody wants it."""


class Requester:
    """Requests ranges of files.

    Args:
        urls: of the location; their servers are its own.
        headers: by host and port, sent to these servers only.
        reach: the addresses that may be connected; None for all.

    Raises:
        InvalidInput: the environment names a proxy that cannot be used; the user's fault.
    """

    def __init__(
        self, urls: Sequence[str], headers: Mapping[str, Mapping[str, str]], reach: Reach | None = None
    ) -> None:
        self._proxies = Proxies()
        self._own = set()
        for url in urls:
            try:
                self._own.add(Target.of(httpx.URL(url)).server)
            except (httpx.InvalidURL, UnicodeError):
                continue  # refused when it is requested
        self._headers = {
            (scheme, netloc): {
                name.lower(): value for name, value in found.items() if name.lower() not in _NOT_THE_USERS
            }
            for scheme, netloc in self._own
            if scheme == "https" and (found := headers.get(netloc)) is not None
        }
        self._session = open_session(reach, connections=MAX_CONNECTIONS, silence_s=SILENCE_TIMEOUT_S)
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._targets: dict[str, Target] = {}
        self._led_to: dict[str, tuple[Target, float]] = {}
        self.requests = 0
        """Number of requests that were sent."""
        self.received_bytes = 0
        """Number of bytes of bodies that came."""

    async def ask(self, url: str, ranges: str, choose: Choose) -> ClientResponse:
        """Request ranges of a file, and return the answer once its body is in the places from `choose`.

        Args:
            url: of the file.
            ranges: the value of the `Range` header.
            choose: returns what takes the body of an answer that is not a redirect.

        Raises:
            SourceUnavailable: no answer, an interrupted or a slow one; retry.
            Rejected: the URL, or one to which it redirects, cannot be requested.
            NotAllowed: it leads to an address that may not be connected.
            DataError: as raised by `choose` or the body.
        """
        shown = without_secrets(url)
        try:
            async with self._turns, asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._ask(url, ranges, choose)
        except DataError:
            self._led_to.pop(url, None)
            raise
        except TimeoutError as error:
            self._led_to.pop(url, None)
            raise SourceUnavailable(f"{shown} does not answer in time", url=shown) from error
        except aiohttp.InvalidURL as error:
            raise Rejected(f"{shown} cannot be requested: it names no valid host", url=shown) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            # `UnicodeError`: a redirect to a host that is not a valid name.
            raise Rejected(f"{shown} cannot be requested: {error}", url=shown) from error
        except (aiohttp.ClientError, OSError) as error:
            self._led_to.pop(url, None)
            reason = _reason(error, may_be_https=shown.startswith("http:") and not self.received_bytes)
            raise SourceUnavailable(f"{shown} cannot be read: {reason}", url=shown) from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()

    def shown(self, url: str) -> str:
        """Return a URL for messages. Raise `Rejected` if it cannot be requested."""
        try:
            return self._target(url).shown
        except (httpx.InvalidURL, UnicodeError) as error:
            shown = without_secrets(url)
            raise Rejected(f"{shown} cannot be requested: {error}", url=shown) from error

    def server(self, url: str) -> object:
        """Return a value that is the same for all URLs of one server."""
        return self._target(url).server

    def _target(self, url: str) -> Target:
        if url not in self._targets:
            self._targets[url] = Target.of(httpx.URL(url))
        return self._targets[url]

    async def _ask(self, url: str, ranges: str, choose: Choose) -> ClientResponse:
        begin = target = self._target(url)
        led_to, until_s = self._led_to.get(url, (begin, 0.0))
        is_remembered = until_s > asyncio.get_running_loop().time()
        if is_remembered:
            target = led_to
        redirects = 0
        while True:
            fields = {**self._fields(begin, target), "range": ranges}

            def chosen(answer: ClientResponse, is_remembered: bool = is_remembered) -> Body | None:
                is_elsewhere = is_remembered and answer.status not in WITH_BYTES
                return None if answer.status in _REDIRECTS or is_elsewhere else choose(answer)

            answer = await self._answer(target, fields, chosen)
            if is_remembered and answer.status not in WITH_BYTES:  # a signature may have expired: once more from here
                del self._led_to[url]
                is_remembered, target = False, begin
                continue
            place = answer.headers.get("location")
            if answer.status not in _REDIRECTS or place is None:
                if redirects and answer.status in WITH_BYTES:
                    self._keep(url, target)
                return answer
            redirects += 1
            if redirects > MAX_REDIRECTS:
                raise httpx.InvalidURL(f"more than {MAX_REDIRECTS} redirects")
            target = _redirected(target, place)

    async def _answer(self, target: Target, fields: Mapping[str, str], chosen: Choose) -> ClientResponse:
        """Send one request, and return its answer once its body is in its places."""
        if self._session.closed:
            raise ConnectionError("the source was closed")
        self.requests += 1
        proxy = self._proxies.of(target.sent)
        async with self._session.get(target.sent, headers=fields, proxy=proxy, allow_redirects=False) as answer:
            body = chosen(answer)
            if body is not None:
                async for data in answer.content.iter_any():
                    self.received_bytes += len(data)
                    body.feed(memoryview(data))
                body.finish()
        return answer

    def _keep(self, url: str, target: Target) -> None:
        while len(self._led_to) >= MAX_KEPT_REDIRECTS:
            del self._led_to[next(iter(self._led_to))]
        self._led_to[url] = target, asyncio.get_running_loop().time() + REDIRECT_KEPT_S

    def _fields(self, begin: Target, target: Target) -> dict[str, str]:
        if target.server != begin.server:
            return dict(_DEFAULT_FIELDS)
        given = {"authorization": begin.authorization} if begin.authorization else {}
        return _DEFAULT_FIELDS | given | self._headers.get(target.server, {})


@lru_cache(MAX_KEPT_REDIRECTS)
def without_secrets(url: str) -> str:
    """Return the URL without user, password and query, which may be secrets."""
    try:
        return str(httpx.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx.InvalidURL:
        return "a URL"


def _redirected(target: Target, place: str) -> Target:
    try:
        return Target.of(target.url.join(place))
    except (httpx.InvalidURL, UnicodeError) as error:
        raise httpx.InvalidURL("it redirects to what cannot be requested") from error


def _reason(error: Exception, *, may_be_https: bool) -> str:
    """Return why a server did not answer, with a hint if the URL's scheme may be wrong.

    The library's own texts may name the place to which a server redirects.
    """
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status} {error.message!a}"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what came is not HTTP"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the body broke off"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return f"the server closed the connection{' (does it serve https:// there?)' if may_be_https else ''}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    reason = str(cause) or type(cause).__name__
    is_refused = isinstance(cause, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in reason
    return "connection refused" if is_refused else reason
