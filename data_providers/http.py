"""Samples from token files on any HTTP server that answers range requests.

One attempt, said clearly: whether to try again is the `DataFetcher`'s to decide, from the error. A file must not change
while it is read: its size and ETag are those of the first answer, or the data are corrupt.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self, TypeVar
from urllib.parse import unquote

import httpx
import numpy as np

from data_providers.formats import HEAD_BYTES, TokenFile, layout_of
from data_providers.order import DataOrder
from data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable, TokenBatch, Tokens
from data_providers.ranges import ByteRange, plan_ranges
from state.errors import DataError, InternalError
from state.intervals import BatchId

MAX_CONNECTIONS = 8
MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 60.0
"""Bounds one answer from its request to its last byte; above it, the source counts as unavailable."""

MAX_WHOLE_FILE_BYTES = 1024**2
"""A server that ignores ranges and sends the whole file is put up with only for a file this small."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,18})-(?P<last>\d{1,18})|\*)/(?P<size>\d{1,18})")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A file as its first answer showed it; `etag` is None when the server gives none."""

    url: str
    layout: TokenFile
    etag: str | None


class HttpDataProvider:
    """A `DataProvider` over URLs of token files. Make one with `open`."""

    def __init__(self, client: httpx.AsyncClient, files: Sequence[_RemoteFile], spec: DatasetSpec) -> None:
        self.order = DataOrder([file.layout for file in files], spec)
        by_name = {file.layout.name: file for file in files}
        self._files = [by_name[file.name] for file in self.order.files]
        self._layouts = [file.layout for file in self._files]
        self._client = client
        self._closed = False

    @classmethod
    async def open(cls, urls: Sequence[str], spec: DatasetSpec) -> Self:
        """A provider over the files at these URLs; a file's name is the last part of its URL's path.

        Raises:
            SourceUnavailable: a server does not answer now; retry.
            CorruptData: a file is not in its format; the data's owner's fault.
            Rejected: a server refuses, or cannot send parts of a file.
        """
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=ANSWER_TIMEOUT_S),
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS),
            follow_redirects=True,
            max_redirects=MAX_REDIRECTS,
            headers={"Accept-Encoding": "identity"},
        )
        try:
            found: dict[str, _RemoteFile] = {}

            async def look_at(url: str) -> None:
                found[url] = await _look_at(client, url, spec)

            await _run_bounded(look_at, urls)
            return cls(client, [found[url] for url in urls], spec)
        except BaseException:
            await client.aclose()
            raise

    @property
    def sequence_count(self) -> int:
        return self.order.sequence_count

    @property
    def fingerprint(self) -> str:
        return self.order.fingerprint

    async def get_samples(self, data_ids: BatchId) -> TokenBatch:
        """As `DataProvider.get_samples`.

        Raises:
            SourceUnavailable: no answer, a broken or slow one, or a status that passes; retry.
            CorruptData: a file is no longer the one that was opened.
            OutOfRange: no such data index.
            Rejected: the server refuses, or cannot send parts of a file; or too many data indices at a time.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        tokens = self.order.spec.empty_tokens(data_ids)
        ranges = plan_ranges(self.order.locate(data_ids), self._layouts, self.order.spec)

        async def read(wanted: ByteRange) -> None:
            await self._read(wanted, tokens)

        await _run_bounded(read, ranges)
        return TokenBatch.fixed_length(tokens, self.order.spec.sequence_length)

    async def aclose(self) -> None:
        self._closed = True
        await self._client.aclose()

    async def _read(self, wanted: ByteRange, tokens: Tokens) -> None:
        file = self._files[wanted.file]
        async with _answer(self._client, file.url, wanted.start, wanted.stop) as response:
            first, stop, size_bytes = _what_comes(response, file.url)
            etag = response.headers.get("ETag")
            if size_bytes != file.layout.size_bytes or (file.etag and etag and etag != file.etag):
                raise CorruptData(
                    f"{file.url} changed: it had {file.layout.size_bytes} bytes and ETag {file.etag}, "
                    f"and now has {size_bytes} and {etag}",
                    url=file.url,
                )
            _check_covers(file.url, (first, stop), (wanted.start, wanted.stop))
            body = await _body(response, file.url, stop - first)
        view = tokens.view(np.uint8).data
        skipped = wanted.start - first
        for source, target, length in wanted.pieces:
            view[target : target + length] = body[skipped + source : skipped + source + length]


async def _look_at(client: httpx.AsyncClient, url: str, spec: DatasetSpec) -> _RemoteFile:
    """What the file's first bytes and the headers say of it."""
    async with _answer(client, url, 0, HEAD_BYTES) as response:
        name = unquote(httpx.URL(url).path).rsplit("/", 1)[-1]
        first, stop, size_bytes = _what_comes(response, url)
        _check_covers(url, (first, stop), (0, min(HEAD_BYTES, size_bytes)))
        head = bytes(await _body(response, url, stop) if stop else b"")
        return _RemoteFile(url, layout_of(name, size_bytes, head[:HEAD_BYTES], spec), response.headers.get("ETag"))


@asynccontextmanager
async def _answer(client: httpx.AsyncClient, url: str, start: int, stop: int) -> AsyncIterator[httpx.Response]:
    """The response to a request for bytes `[start, stop)`, its body still to be read; httpx's errors as ours."""
    try:
        request = client.build_request("GET", url, headers={"Range": f"bytes={start}-{stop - 1}"})
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            response = await client.send(request, stream=True)
            try:
                yield response
            finally:
                # A cancelled close would leave the connection busy in httpcore's pool for ever.
                await asyncio.shield(response.aclose())
    except (TimeoutError, httpx.TimeoutException) as error:
        raise SourceUnavailable(f"{url} does not answer in time", url=url) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
        raise Rejected(f"{url} cannot be asked: {error}", url=url) from error
    except httpx.HTTPError as error:
        raise SourceUnavailable(f"{url} cannot be read: {error or type(error).__name__}", url=url) from error


def _what_comes(response: httpx.Response, url: str) -> tuple[int, int, int]:
    """Which bytes `[first, stop)` the body will hold, and the whole file's size.

    Raises:
        SourceUnavailable, CorruptData, Rejected: the status or the headers say that the wanted bytes will not come.
    """
    status = response.status_code
    if status >= 500 or status in TRANSIENT_STATUSES:
        raise SourceUnavailable(
            f"{url} answered {status} {response.reason_phrase}",
            url=url,
            status=status,
            retry_after=response.headers.get("Retry-After"),
        )
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Rejected(f"{url} is sent with an encoding of its own, so that its bytes cannot be addressed", url=url)
    if status == httpx.codes.OK:
        size = response.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MAX_WHOLE_FILE_BYTES:
            raise Rejected(f"{url} answers a range request with the whole file ({size or 'unknown'} bytes)", url=url)
        return 0, int(size), int(size)
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if status == httpx.codes.PARTIAL_CONTENT and match and match["first"]:
        return int(match["first"]), int(match["last"]) + 1, int(match["size"])
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and match and not match["first"]:
        return 0, 0, int(match["size"])
    raise Rejected(f"{url} answered {status} {response.reason_phrase}", url=url, status=status)


def _check_covers(url: str, sent: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Nothing, when the bytes `[first, stop)` that come contain the wanted ones and are not far more.

    Raises:
        SourceUnavailable: they are not; some server on the way is confused.
    """
    most = max(wanted[1] - wanted[0], MAX_WHOLE_FILE_BYTES)
    if sent[0] > wanted[0] or sent[1] < wanted[1] or sent[1] - sent[0] > most:
        raise SourceUnavailable(f"{url} answered bytes [{sent[0]}, {sent[1]}) for [{wanted[0]}, {wanted[1]})", url=url)


async def _body(response: httpx.Response, url: str, length: int) -> bytearray:
    """The body, which must have exactly `length` bytes."""
    body = bytearray()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    async for chunk in response.stream:
        body += chunk
        if len(body) > length:
            break
    if len(body) != length:
        raise SourceUnavailable(
            f"{url} sent {'more' if len(body) > length else len(body)} bytes where it announced {length}", url=url
        )
    return body


async def _run_bounded(job: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """Runs the job on every item, at most `MAX_CONNECTIONS` at a time; the first data error ends all and is raised."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await job(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(MAX_CONNECTIONS, len(items))):
                group.create_task(work())
    except BaseExceptionGroup as failed:
        data_errors, others = failed.split(DataError)
        if others is not None or data_errors is None:
            raise
        raise data_errors.exceptions[0] from None
