"""Sends the requests of one source: own headers to own servers, redirects, time limits, and errors as `DataError`s.

The rules kept here: the headers of `HttpOptions` go to the location's own servers only, each to its own host, and over
https only; a URL's user and password go to that URL's server only;
at most `MAX_REDIRECTS` redirects are followed, and where they led is remembered for `REDIRECT_KEPT_S`; every answer has
a time limit; messages show neither the user, password or query of a URL nor the place to which a server redirects.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence

import httpx

from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.sources.http.connection_pool import MAX_CONNECTIONS, ConnectionPool
from epochal.data_providers.sources.http.http1 import Body, BrokenConnection, Discarded, Head, SilentConnection
from epochal.data_providers.sources.http.http2 import MAX_STREAMS
from epochal.data_providers.sources.http.target import Target
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.tracing.request_spans import traced_request
from epochal.state.errors import DataError

ANSWER_TIMEOUT_S = 60.0
"""Time limit for one answer from its request to its last byte; the bytes received until then are kept."""
MAX_REDIRECTS = 5
REDIRECT_KEPT_S = 60.0
"""Time for which requests go to the last redirect's target; after an answer without the bytes it is asked again."""
MAX_KEPT_REDIRECTS = 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
WITH_BYTES = frozenset({200, 206})
_DEFAULT_FIELDS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "epochal"}
_NOT_THE_USERS = frozenset({"range", "connection", "content-length", "transfer-encoding", "host"})

Choose = Callable[[Head], Body]
Took = Callable[[float], None]


def _ignore(seconds: float) -> None:
    """Do nothing."""


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
        self.pool = ConnectionPool(reach)
        self._own = set()
        for url in urls:
            try:
                self._own.add(Target.of(httpx.URL(url)).origin)
            except (httpx.InvalidURL, UnicodeError):
                continue  # refused when it is requested
        self._headers = {
            origin: {name.lower(): value for name, value in found.items() if name.lower() not in _NOT_THE_USERS}
            for origin in self._own
            if origin.scheme == "https" and (found := headers.get(origin.netloc.lower())) is not None
        }
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._streams = asyncio.Semaphore(MAX_STREAMS)
        self._targets: dict[str, Target] = {}
        self._led_to: dict[str, tuple[Target, float]] = {}

    def width(self, url: str, *, is_single: bool) -> int:
        """Return how many requests for a file may be under way at a time.

        Args:
            url: of the file.
            is_single: whether its server sends one range at a time.
        """
        return MAX_STREAMS if self._multiplexes(url, is_single) else MAX_CONNECTIONS

    def _multiplexes(self, url: str, is_single: bool) -> bool:
        led_to, until_s = self._led_to.get(url, (None, 0.0))
        is_led = led_to is not None and until_s > asyncio.get_running_loop().time()
        target = led_to if is_led and led_to is not None else self._target(url)
        return is_single and self.pool.multiplexes(target.origin)

    async def ask(
        self, url: str, ranges: str, choose: Choose, *, is_single: bool = False, took: Took = _ignore
    ) -> Head:
        """Request ranges of a file, and return the head of the answer once its body is in the places from `choose`.

        Args:
            url: of the file.
            ranges: the value of the `Range` header.
            choose: returns what takes the body of an answer that is not a redirect.
            is_single: whether its server sends one range at a time, so that HTTP/2 may help.
            took: is told the seconds from the request to the end of its answer, also of one that fails.

        Raises:
            SourceUnavailable: no answer, an interrupted or a slow one; retry.
            Rejected: the URL, or one to which it redirects, cannot be requested.
            NotAllowed: it leads to an address that may not be connected.
            DataError: as raised by `choose` or the body.
        """
        try:
            turns = self._streams if self._multiplexes(url, is_single) else self._turns
            async with turns:
                begun_s = asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        with traced_request("ask data source", self._target(url).origin.netloc) as parent:
                            return await self._ask(url, ranges, choose, is_single, parent)
                finally:
                    took(asyncio.get_running_loop().time() - begun_s)
        except DataError:
            self._led_to.pop(url, None)
            raise
        except (TimeoutError, SilentConnection) as error:
            self._led_to.pop(url, None)
            shown = without_secrets(url)
            raise SourceUnavailable(f"{shown} does not answer in time", url=shown) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            # `UnicodeError`: a redirect to a host that is not a valid name.
            shown = without_secrets(url)
            raise Rejected(f"{shown} cannot be requested: {error}", url=shown) from error
        except (BrokenConnection, OSError) as error:
            self._led_to.pop(url, None)
            shown = without_secrets(url)
            raise SourceUnavailable(f"{shown} cannot be read: {_reason(error, shown)}", url=shown) from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self.pool.aclose()

    def shown(self, url: str) -> str:
        """Return a URL for messages. Raise `Rejected` if it cannot be requested."""
        try:
            return self._target(url).shown
        except (httpx.InvalidURL, UnicodeError) as error:
            shown = without_secrets(url)
            raise Rejected(f"{shown} cannot be requested: {error}", url=shown) from error

    def server(self, url: str) -> object:
        """Return a value that is the same for all URLs of one server."""
        return self._target(url).origin

    def _target(self, url: str) -> Target:
        if url not in self._targets:
            self._targets[url] = Target.of(httpx.URL(url))
        return self._targets[url]

    async def _ask(self, url: str, ranges: str, choose: Choose, is_single: bool, parent: str | None) -> Head:
        begin = target = self._target(url)
        now_s = asyncio.get_running_loop().time()
        led_to, until_s = self._led_to.get(url, (begin, 0.0))
        is_remembered = until_s > now_s
        if is_remembered:
            target = led_to
        redirects = 0
        while True:
            remembered = is_remembered

            def chosen(head: Head, remembered: bool = remembered) -> Body:
                if head.status in _REDIRECTS or (remembered and head.status not in WITH_BYTES):
                    return Discarded()
                return choose(head)

            fields = self._fields(begin, target) + f"Range: {ranges}\r\n"
            if parent is not None and target.origin in self._own:
                fields += f"Traceparent: {parent}\r\n"
            head = await self.pool.exchange(target, fields, chosen, is_single=is_single)
            if is_remembered and head.status not in WITH_BYTES:  # a signature may have expired: once more from here
                del self._led_to[url]
                is_remembered, target = False, begin
                continue
            place = head.fields.get("location")
            if head.status not in _REDIRECTS or place is None:
                if redirects and head.status in WITH_BYTES:
                    self._keep(url, target)
                return head
            redirects += 1
            if redirects > MAX_REDIRECTS:
                raise httpx.InvalidURL(f"more than {MAX_REDIRECTS} redirects")
            target = _redirected(target, place)

    def _keep(self, url: str, target: Target) -> None:
        while len(self._led_to) >= MAX_KEPT_REDIRECTS:
            del self._led_to[next(iter(self._led_to))]
        self._led_to[url] = target, asyncio.get_running_loop().time() + REDIRECT_KEPT_S

    def _fields(self, begin: Target, target: Target) -> str:
        own = self._headers.get(target.origin, {}) if target.origin == begin.origin else {}
        fields = _written(_DEFAULT_FIELDS | own)
        if begin.authorization and target.origin == begin.origin and "authorization" not in own:
            return f"{fields}Authorization: {begin.authorization}\r\n"
        return fields


def without_secrets(url: str) -> str:
    """Return the URL without user, password and query, which may be secrets."""
    try:
        return str(httpx.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx.InvalidURL:
        return "a URL"


def _redirected(target: Target, place: str) -> Target:
    try:
        return Target.of(target.url.join(place.encode("latin-1").decode("utf-8", "replace")))
    except (httpx.InvalidURL, UnicodeError) as error:
        raise httpx.InvalidURL("it redirects to what cannot be requested") from error


def _written(fields: Mapping[str, str]) -> str:
    return "".join(f"{name.title()}: {value}\r\n" for name, value in fields.items())


def _reason(error: Exception, shown: str) -> str:
    """Return why a server did not answer, with a hint if the URL's scheme may be wrong."""
    reason = str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in reason:
        return "connection refused"
    is_silent = isinstance(error, BrokenConnection) and error.is_unanswered and shown.startswith("http:")
    return f"{reason} (does it serve https:// there?)" if is_silent else reason
