"""One answer to one range request: what will come, whether it is what was asked for, and httpx's errors as ours."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from data_providers.protocol import Rejected, SourceUnavailable
from runtime.http_client import raw_body, reason_of, streamed
from runtime.retry import retry_after_s

ANSWER_TIMEOUT_S = 60.0
"""Bounds one answer from its request to its last byte; what came until then is not lost."""
MAX_WHOLE_FILE_BYTES = 1024**2
"""A server that ignores ranges and sends the whole file is put up with only for a file this small."""
TRANSIENT_STATUSES = frozenset({408, 425, 429})
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,18})-(?P<last>\d{1,18})|\*)/(?P<size>\d{1,18})")


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer whose body is still to be read. `url` is for messages: it shows no credentials."""

    response: httpx.Response
    url: str


@asynccontextmanager
async def opened(client: httpx.AsyncClient, url: str, start: int, stop: int) -> AsyncIterator[Opened]:
    """The answer to a request for bytes `[start, stop)`.

    Raises:
        SourceUnavailable: no answer, a broken or a slow one; retry.
        Rejected: the URL cannot be asked.
    """
    shown = url.partition("?")[0]
    try:
        request = client.build_request("GET", url, headers={"Range": f"bytes={start}-{stop - 1}"})
        shown = str(request.url.copy_with(userinfo=b"", query=None, fragment=None))
        async with asyncio.timeout(ANSWER_TIMEOUT_S), streamed(client, request) as response:
            yield Opened(response, shown)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise SourceUnavailable(f"{shown} does not answer in time", url=shown) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects, UnicodeError) as error:
        # `UnicodeError`: a redirect to a host that is no name (httpx decodes it to compare servers).
        raise Rejected(f"{shown} cannot be asked: {error}", url=shown) from error
    except httpx.HTTPError as error:
        raise SourceUnavailable(f"{shown} cannot be read: {reason_of(error, shown)}", url=shown) from error


def what_comes(answer: Opened) -> tuple[int, int, int]:
    """Return the bytes `[first, stop)` that the body will hold, and the whole file's size.

    Raises:
        SourceUnavailable, Rejected: the status or the headers say that the wanted bytes will not come.
    """
    response, url = answer.response, answer.url
    status = response.status_code
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status in TRANSIENT_STATUSES:
        raise SourceUnavailable(
            f"{url} answered {status} {response.reason_phrase}",
            url=url,
            status=status,
            retry_after_s=retry_after_s(response.headers.get("Retry-After"), time.time()),
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


def check_covers(url: str, sent: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Raise unless the bytes `[first, stop)` of the answer contain the wanted ones and are not far more.

    Raises:
        SourceUnavailable: they do not; some server on the way is confused.
    """
    most = max(wanted[1] - wanted[0], MAX_WHOLE_FILE_BYTES)
    if sent[0] > wanted[0] or sent[1] < wanted[1] or sent[1] - sent[0] > most:
        raise SourceUnavailable(f"{url} answered bytes [{sent[0]}, {sent[1]}) for [{wanted[0]}, {wanted[1]})", url=url)


@dataclass(slots=True)
class Filling:
    """A buffer that is filled from its beginning on."""

    into: memoryview
    filled: int = 0

    @property
    def missing(self) -> int:
        """Bytes that are not there yet."""
        return len(self.into) - self.filled

    def take(self, chunk: memoryview) -> None:
        """Puts to its place what of the chunk is still wanted."""
        chunk = chunk[: self.missing]
        self.into[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)


async def body_into(answer: Opened, target: Filling, *, skip: int, announced: int) -> None:
    """Fill the target from the answer, behind its first `skip` bytes. What came before a break stays.

    Raises:
        SourceUnavailable: the body has another length than announced.
    """
    received, begin = 0, target.filled
    async for chunk in raw_body(answer.response):
        first = max(0, skip - received)
        received += len(chunk)
        if received > announced:
            target.filled = begin
            raise SourceUnavailable(f"{answer.url} sent more bytes than the {announced} that it announced")
        target.take(memoryview(chunk)[first:])
    if received != announced:
        raise SourceUnavailable(f"{answer.url} sent {received} bytes where it announced {announced}", url=answer.url)
