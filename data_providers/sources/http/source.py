"""Files on any HTTP server that answers range requests, as a `ByteSource`.

The rules kept here: a file must not change while it is read (its size and its ETag, or else its modification time, are
those of the first answer); an interrupted body is continued where it ended; the headers of `EPOCHAL_HTTP_HEADERS` are
sent only to the host for which it names them, if it is one of the location's own; every wait has a bound.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

import httpx
from aiohttp import ClientResponse

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import (
    MAX_CONCURRENT_READS,
    SourceFile,
    Wanted,
    closed_on_failure,
    run_bounded,
)
from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multi_ranges import Servers, plan_groups, range_field, several_body
from epochal.data_providers.sources.http.range_answers import (
    RangeBody,
    SeveralBody,
    UnfitAnswer,
    announced_range,
    check_covers,
    version_of,
    visible,
)
from epochal.data_providers.sources.http.requester import MAX_CONNECTIONS, WITH_BYTES, Body, Requester, without_secrets
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.http_client import is_temporary
from epochal.runtime.retry import Backoff, RetryPolicy
from epochal.state.errors import DataError, InvalidInput

RETRY = RetryPolicy(attempts=4, first_delay_s=0.25, max_delay_s=8.0, max_asked_s=30.0)
"""Default policy for failures in a row."""
MAX_ANSWERS_PER_READ = 64
"""Maximum number of answers for one read, as long as each of them has brought some bytes."""
PASSING_STATUSES = frozenset({200, 206, 403, 404})
"""Statuses of answers without the bytes that something between client and server may have given once."""
__all__ = ["MAX_CONNECTIONS", "HttpOptions", "HttpSource", "file_names", "without_secrets"]

PROBE_BYTES = 1
MAX_URLS = 100_000
HEADERS_VARIABLE = "EPOCHAL_HTTP_HEADERS"
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::[0-9]{1,5})?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e]+(?:[\t ]+[\x21-\x7e]+)*)?")


class Attempts:
    """The attempts of one read of an opened file.

    Failures in a row are counted, and forgotten when bytes come, but there are never more than `MAX_ANSWERS_PER_READ`;
    and a file that was opened is not refused for one answer of a proxy or CDN on a bad day, but only if nothing else
    comes.

    Args:
        policy: for failures in a row.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._backoff = policy.begin()
        self._answers = 0
        self._unavailable: SourceUnavailable | None = None

    async def failed(self, error: DataError, received_bytes: int) -> None:
        """Return when it is time for the next attempt.

        Args:
            error: of the last attempt.
            received_bytes: of its answer, before it failed.

        Raises:
            SourceUnavailable: the attempts are over; retry later.
            DataError: `error`, if it does not pass, or came in each of the last attempts.
        """
        if received_bytes:
            self._backoff.reset()
            self._unavailable = None
        if isinstance(error, SourceUnavailable):
            self._unavailable = error
        elif not _may_pass(error):
            raise error
        self._answers += 1
        last = self._unavailable or error
        if self._answers == MAX_ANSWERS_PER_READ:
            raise last
        await self._backoff.wait(last, error.context.get("retry_after_s", 0.0))


def _may_pass(error: DataError) -> bool:
    return isinstance(error, Rejected | CorruptData) and error.context.get("status") in PASSING_STATUSES


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of the HTTP requests.

    Attributes:
        headers: by host, in lower case, with its port unless that is 443: sent over https to the location's own servers
            only, not to others to which they redirect.
        retry: policy for requests that have brought nothing.
        reach: the addresses that may be connected; None for all.
    """

    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    retry: RetryPolicy = RETRY
    reach: Reach | None = None

    @classmethod
    def from_environment(cls, reach: Reach | None = None) -> "HttpOptions":
        """Return the options with the headers of `EPOCHAL_HTTP_HEADERS`: a JSON object of hosts and their headers.

        Raises:
            InvalidInput: the variable has another form. The message does not repeat it: it may be a secret.
        """
        text = os.environ.get(HEADERS_VARIABLE)
        if not text:
            return cls(reach=reach)
        try:
            by_host = json.loads(text)
        except ValueError:
            by_host = None
        if not isinstance(by_host, dict) or not all(
            _HOST.fullmatch(host) and isinstance(headers, dict) and all(map(_is_header, headers, headers.values()))
            for host, headers in by_host.items()
        ):
            raise InvalidInput(
                f"{HEADERS_VARIABLE} does not name hosts with headers; allowed: a JSON object like "
                '{"data.example.org": {"Authorization": "Bearer …"}}, with host:port for another port than 443'
            )
        return cls({host.lower().removesuffix(":443"): found for host, found in by_host.items()}, reach=reach)


def _is_header(name: str, value: object) -> bool:
    return bool(_HEADER_NAME.fullmatch(name)) and isinstance(value, str) and bool(_HEADER_VALUE.fullmatch(value))


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A file as its first answer described it."""

    url: str
    listed: SourceFile


class HttpSource:
    """A `ByteSource` over URLs. Make one with `open`."""

    def __init__(self, requester: Requester, files: Sequence[_RemoteFile], options: HttpOptions) -> None:
        self._requester = requester
        self._by_name = {file.listed.name: file for file in files}
        self._options = options
        self._servers = Servers()

    @classmethod
    async def open(cls, urls: Sequence[str], options: HttpOptions | None = None) -> Self:
        """Open the files at these URLs, with the names of `file_names`.

        Raises:
            SourceUnavailable: a server does not answer now; retry.
            Rejected: a server refuses, or cannot send parts of a file; or there are more than `MAX_URLS`.
            InvalidInput: two URLs name the same file, or one is not a URL; the fault of the location's author. Or the
                environment names a proxy that cannot be used.
        """
        if len(urls) > MAX_URLS:
            raise Rejected(f"{len(urls)} URLs; at most {MAX_URLS} are allowed")
        options = options or HttpOptions.from_environment()
        names = file_names(urls)
        source = cls(Requester(urls, options.headers, options.reach), (), options)
        found: dict[str, _RemoteFile] = {}
        async with closed_on_failure(source):

            async def look_at(url: str) -> None:
                found[url] = await source._look_at(url, names[url])

            await run_bounded(look_at, list(names), MAX_CONCURRENT_READS)
        source._by_name = {file.listed.name: file for file in found.values()}
        return source

    @property
    def location(self) -> str:
        first = next(iter(self._by_name.values()), None)
        return "no URL" if first is None else without_secrets(first.url)

    @property
    def files(self) -> Sequence[SourceFile]:
        return [file.listed for file in self._by_name.values()]

    @property
    def requests(self) -> int:
        """Number of requests that were sent so far."""
        return self._requester.requests

    @property
    def received_bytes(self) -> int:
        """Number of bytes of bodies that came so far."""
        return self._requester.received_bytes

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`; continue an interrupted body where it ended."""
        await self._fill(self._by_name[name], Filling(start, into))

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Fill every destination, as `BatchedSource.read_many_into`: several ranges in one request where that works."""
        by_file: dict[str, list[Filling]] = {}
        for one in wanted:
            by_file.setdefault(one.name, []).append(Filling(one.start, one.into))
        groups = [
            (self._by_name[name], group) for name, targets in by_file.items() for group in self._grouped(name, targets)
        ]
        await run_bounded(self._read_group, groups, MAX_CONNECTIONS)

    def _grouped(self, name: str, targets: Sequence[Filling]) -> list[list[Filling]]:
        if self._servers.takes_several(self._requester.server(self._by_name[name].url)):
            return plan_groups(targets)
        return [[target] for target in targets]

    async def _read_group(self, job: tuple[_RemoteFile, list[Filling]]) -> None:
        file, targets = job
        if len(targets) > 1 and self._servers.takes_several(self._requester.server(file.url)):
            await self._ask_several(file, targets)

        async def fill(target: Filling) -> None:
            await self._fill(file, target)

        await run_bounded(fill, [target for target in targets if target.missing], MAX_CONNECTIONS)

    async def _ask_several(self, file: _RemoteFile, targets: list[Filling]) -> None:
        """Request several ranges at once, once; what the answer does not hold is still missing afterwards."""
        server, url = self._requester.server(file.url), file.listed.place
        bodies: list[SeveralBody] = []

        def parts(head: ClientResponse) -> Body:
            bodies.append(several_body(head, url, file.listed, targets))
            return bodies[-1]

        try:
            await self._requester.ask(file.url, range_field(targets), parts)
        except UnfitAnswer as error:
            self._servers.refused(server, error)
        except SourceUnavailable as error:
            for body in bodies:
                body.break_off()
            self._servers.failed(server, error)
            if not any(target.filled for target in targets):
                await _wait(self._options.retry.begin(), error)
        else:
            self._servers.answered(server)

    async def _fill(self, file: _RemoteFile, target: Filling) -> None:
        """Request the missing bytes of a target until it is complete, within the bounds of the options."""
        attempts = Attempts(self._options.retry)
        while target.missing:
            held = target.filled
            try:
                await self._continue(file, target)
            except DataError as error:
                await attempts.failed(error, target.filled - held)

    async def _continue(self, file: _RemoteFile, target: Filling) -> None:
        """Request the missing bytes of the target once."""
        begin, stop, url = target.start + target.filled, target.stop, file.listed.place
        ranges = range_field((target,))

        def into_target(head: ClientResponse) -> Body | None:
            if is_temporary(head.status):
                return None
            first, end, size_bytes = announced_range(head, url, ranges)
            if (size_bytes, version_of(head)) != (file.listed.size_bytes, file.listed.version):
                raise CorruptData(
                    f"{url} changed: it had {file.listed.size_bytes} bytes and version "
                    f"{visible(file.listed.version) or 'unknown'}, and now has {size_bytes} and "
                    f"{visible(version_of(head)) or 'unknown'}",
                    url=url,
                    **({"status": head.status} if head.status == httpx.codes.OK else {}),  # maybe of something else
                )
            check_covers(url, (first, end), (begin, stop))
            promised = head.content_length
            if promised is not None and promised > end - first:
                raise SourceUnavailable(
                    f"{url} promises {promised} bytes where it announces {end - first}: bytes {first}-{end - 1}",
                    url=url,
                )
            return RangeBody(target, begin - first, end - first, url)

        head = await self._requester.ask(file.url, ranges, into_target)
        if head.status not in WITH_BYTES:
            announced_range(head, url, ranges)

    async def _look_at(self, url: str, name: str) -> _RemoteFile:
        """Return the file as the answer for its first bytes describes it."""
        backoff = self._options.retry.begin()
        shown, ranges = self._requester.shown(url), f"bytes=0-{PROBE_BYTES - 1}"

        def probed(head: ClientResponse) -> None:
            if not is_temporary(head.status):
                announced_range(head, shown, ranges)

        while True:
            try:
                head = await self._requester.ask(url, ranges, probed)
                _, _, size_bytes = announced_range(head, shown, ranges)
                return _RemoteFile(url, SourceFile(name, size_bytes, shown, version_of(head), _distinction(url, head)))
            except SourceUnavailable as error:
                await _wait(backoff, error)

    async def aclose(self) -> None:
        await self._requester.aclose()


async def _wait(backoff: Backoff, error: SourceUnavailable) -> None:
    await backoff.wait(error, error.context.get("retry_after_s", 0.0))


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


def _distinction(url: str, head: ClientResponse) -> str:
    """Return a digest of the whole URL, its query included; "" if an ETag distinguishes the file from others.

    With an ETag the query does not count: it may be a signature that changes every hour.
    """
    return "" if head.headers.get("etag") else hashlib.sha256(url.encode()).hexdigest()
