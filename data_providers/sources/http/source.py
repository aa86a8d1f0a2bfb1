"""Files on any HTTP server that answers range requests, as a `ByteSource`.

The rules kept here: a file must not change while it is read (its size and its ETag, or else its modification time, are
those of the first answer); an interrupted body is continued where it ended; the headers of `EPOCHAL_HTTP_HEADERS` are
sent only to the location's own servers; every wait has a bound.
"""

import asyncio
import hashlib
import json
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self
from urllib.parse import unquote

import httpx

from data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from data_providers.sources.http.answers import Filling, Opened, announced_range, body_into, check_covers, opened
from data_providers.sources.protocol import MAX_CONCURRENT_READS, SourceFile, run_bounded
from runtime.retry import RetryPolicy
from state.config.data_location import MAX_PORT
from state.errors import InvalidInput

MAX_CONNECTIONS = 16
MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 20.0
POOL_TIMEOUT_S = 120.0
MAX_ANSWERS_PER_READ = 64
"""Maximum number of answers for one read, as long as each of them has brought some bytes."""
PROBE_BYTES = 1
RETRY = RetryPolicy(attempts=4, first_delay_s=0.25, max_delay_s=8.0, max_asked_s=30.0)
MAX_URLS = 100_000
HEADERS_VARIABLE = "EPOCHAL_HTTP_HEADERS"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e]+(?:[\t ]+[\x21-\x7e]+)*)?")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of the HTTP requests.

    Attributes:
        headers: sent to the location's own servers only, not to others to which they redirect.
        retry: policy for requests that have brought nothing.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    retry: RetryPolicy = RETRY

    @classmethod
    def from_environment(cls) -> "HttpOptions":
        """Return the options with the headers of `EPOCHAL_HTTP_HEADERS`: a JSON object of names and values.

        Raises:
            InvalidInput: the variable has another form. The message does not repeat it: it may be a secret.
        """
        text = os.environ.get(HEADERS_VARIABLE)
        if not text:
            return cls()
        try:
            headers = json.loads(text)
        except ValueError:
            headers = None
        if not isinstance(headers, dict) or not all(
            _HEADER_NAME.fullmatch(name) and isinstance(value, str) and _HEADER_VALUE.fullmatch(value)
            for name, value in headers.items()
        ):
            raise InvalidInput(f'{HEADERS_VARIABLE} is not a JSON object like {{"Authorization": "Bearer …"}}')
        return cls(headers)


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A file as its first answer described it."""

    url: str
    listed: SourceFile


class HttpSource:
    """A `ByteSource` over URLs. Make one with `open`."""

    def __init__(self, client: httpx.AsyncClient, files: Sequence[_RemoteFile], options: HttpOptions) -> None:
        self._client = client
        self._by_name = {file.listed.name: file for file in files}
        self._options = options
        # httpcore's own queue loses a connection if a request is cancelled while it gets one.
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)

    @classmethod
    async def open(cls, urls: Sequence[str], options: HttpOptions | None = None) -> Self:
        """Open the files at these URLs, with the names of `file_names`.

        Raises:
            SourceUnavailable: a server does not answer now; retry.
            Rejected: a server refuses, or cannot send parts of a file; or there are more than `MAX_URLS`.
            InvalidInput: two URLs name the same file, or one is not a URL; the fault of the location's author.
        """
        if len(urls) > MAX_URLS:
            raise Rejected(f"{len(urls)} URLs; at most {MAX_URLS} are allowed")
        options = options or HttpOptions.from_environment()
        names = file_names(urls)
        client = _client_for(urls, options)
        found: dict[str, _RemoteFile] = {}
        source = cls(client, (), options)
        try:

            async def look_at(url: str) -> None:
                found[url] = await source._look_at(url, names[url])

            await run_bounded(look_at, list(names), MAX_CONCURRENT_READS)
        except BaseException:
            await client.aclose()
            raise
        source._by_name = {file.listed.name: file for file in found.values()}
        return source

    @property
    def location(self) -> str:
        first = next(iter(self._by_name.values()), None)
        return "no URL" if first is None else without_secrets(first.url)

    @property
    def files(self) -> Sequence[SourceFile]:
        return [file.listed for file in self._by_name.values()]

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`; continue an interrupted body where it ended."""
        file, target = self._by_name[name], Filling(into)
        answers = 0
        backoff = self._options.retry.begin()
        while target.missing:
            held = target.filled
            try:
                await self._continue(file, start, target)
            except SourceUnavailable as error:
                answers += 1
                if answers == MAX_ANSWERS_PER_READ:
                    raise
                if target.filled > held:
                    backoff.reset()
                await backoff.wait(error, error.context.get("retry_after_s", 0.0))

    async def _continue(self, file: _RemoteFile, start: int, target: Filling) -> None:
        """Request the missing bytes of the target, which begins at byte `start`, once."""
        begin, stop = start + target.filled, start + target.filled + target.missing
        async with self._turns, opened(self._client, file.url, begin, stop) as answer:
            first, end, size_bytes = announced_range(answer)
            if (size_bytes, _version(answer)) != (file.listed.size_bytes, file.listed.version):
                raise CorruptData(
                    f"{answer.url} changed: it had {file.listed.size_bytes} bytes and version "
                    f"{file.listed.version or 'unknown'}, and now has {size_bytes} and {_version(answer) or 'unknown'}",
                    url=answer.url,
                )
            check_covers(answer.url, (first, end), (begin, stop))
            await body_into(answer, target, skip=begin - first, announced=end - first)

    async def _look_at(self, url: str, name: str) -> _RemoteFile:
        """Return the file as the answer for its first bytes describes it."""
        backoff = self._options.retry.begin()
        while True:
            try:
                async with self._turns, opened(self._client, url, 0, PROBE_BYTES) as answer:
                    _, _, size_bytes = announced_range(answer)
                    version, distinction = _version(answer), _distinction(url, answer)
                    return _RemoteFile(url, SourceFile(name, size_bytes, answer.url, version, distinction))
            except SourceUnavailable as error:
                await backoff.wait(error, error.context.get("retry_after_s", 0.0))

    async def aclose(self) -> None:
        await self._client.aclose()


def file_names(urls: Sequence[str]) -> dict[str, str]:
    """Return the name of the file at each URL: its path below the longest folder that every URL shares.

    Of files on several servers it is the last part of the path, unless two would have the same name.

    Raises:
        InvalidInput: two URLs still have the same name, or one names no file; the fault of the location's author.
    """
    places: dict[str, list[str]] = {}
    for number, url in enumerate(urls, start=1):
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            # Secrets cannot be removed from a URL that cannot be parsed; httpx's reason may show some of them too.
            may_have_secrets = "@" in url or "?" in url
            shown = f"URL {number} of {len(urls)} is" if may_have_secrets else f"{url!r} is"
            raise InvalidInput(f"{shown} not a URL{'' if may_have_secrets else f': {error}'}") from error
        parts = [parsed.netloc.decode("ascii", "replace"), *unquote(parsed.path).split("/")[1:]]
        if not parts[-1]:
            raise InvalidInput(f"{without_secrets(url)} names no file", url=without_secrets(url))
        places[url] = parts
    names = {url: parts[-1] for url, parts in places.items()}
    is_of_one_server = len({parts[0] for parts in places.values()}) == 1
    if len(names) > 1 and (is_of_one_server or len(set(names.values())) < len(names)):
        first, last = min(places.values()), max(places.values())
        pairs = enumerate(zip(first, last, strict=False))
        shared = next((number for number, (one, other) in pairs if one != other), 0)
        names = {url: "/".join(parts[shared:]) for url, parts in places.items()}
    if len(urls) != len(places) or len(set(names.values())) < len(names):
        raise InvalidInput("two of the URLs name the same file", urls=len(urls))
    return names


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificates, which take long to read."""
    return httpx.create_ssl_context()


def _client_for(urls: Sequence[str], options: HttpOptions) -> httpx.AsyncClient:
    own_servers = {httpx.URL(url).copy_with(raw_path=b"/", userinfo=b"") for url in urls}
    origins = {(url.scheme, url.raw_host, url.port) for url in own_servers}

    async def keep_headers_at_home(request: httpx.Request) -> None:
        if not 0 <= (request.url.port or 0) <= MAX_PORT:
            raise httpx.InvalidURL(f"there is no port {request.url.port}")  # asyncio would raise `OverflowError`
        if (request.url.scheme, request.url.raw_host, request.url.port) in origins:
            request.headers.update(options.headers)
        else:
            for name in options.headers:
                request.headers.pop(name, None)

    return httpx.AsyncClient(
        verify=_trusted(),
        timeout=httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=POOL_TIMEOUT_S),
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [keep_headers_at_home]},
    )


def _version(answer: Opened) -> str:
    headers = answer.response.headers
    found: str = headers.get("ETag") or headers.get("Last-Modified") or ""
    return found


def _distinction(url: str, answer: Opened) -> str:
    """Return a digest of the whole URL, its query included; "" if an ETag distinguishes the file from others.

    With an ETag the query does not count: it may be a signature that changes every hour.
    """
    return "" if answer.response.headers.get("ETag") else hashlib.sha256(url.encode()).hexdigest()


def without_secrets(url: str) -> str:
    """Return the URL without user, password and query, which may be secrets."""
    try:
        return str(httpx.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx.InvalidURL:
        return "a URL"
