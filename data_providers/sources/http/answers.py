"""One answer to one range request: its checks, its body, and httpx's errors as `DataError`s."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from data_providers.protocol import Rejected, SourceUnavailable
from runtime.http_client import is_temporary, raw_body, reason_of, streamed
from runtime.retry import retry_after_s

ANSWER_TIMEOUT_S = 60.0
"""Time limit for one answer from its request to its last byte; the bytes received until then are kept."""
MAX_WHOLE_FILE_BYTES = 1024**2
"""Maximum size of a file that a server may send as a whole, ignoring ranges."""
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,18})-(?P<last>\d{1,18})|\*)/(?P<size>\d{1,18})")


class Opened(NamedTuple):
    """An answer whose body has not been read yet. `url` is for messages: it shows no credentials."""

    response: httpx.Response
    url: str


@asynccontextmanager
async def opened(client: httpx.AsyncClient, url: str, start: int, stop: int) -> AsyncIterator[Opened]:
    """Request the bytes `[start, stop)`, and yield the answer.

    Raises:
        SourceUnavailable: no answer, an interrupted or a slow one; retry.
        Rejected: the URL cannot be requested.
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
        # `UnicodeError`: a redirect to a host that is not a valid name (httpx decodes it to compare servers).
        raise Rejected(f"{shown} cannot be requested: {error}", url=shown) from error
    except httpx.HTTPError as error:
        raise SourceUnavailable(f"{shown} cannot be read: {reason_of(error, shown)}", url=shown) from error


def announced_range(answer: Opened) -> tuple[int, int, int]:
    """Return the bytes `[first, stop)` of the file that the body will hold, and the file's size.

    Raises:
        SourceUnavailable, Rejected: by the status or the headers, the answer does not hold the wanted bytes.
    """
    response, url = answer.response, answer.url
    status = response.status_code
    if is_temporary(status):
        raise SourceUnavailable(
            f"{url} answered {status} {response.reason_phrase}",
            url=url,
            status=status,
            retry_after_s=retry_after_s(response.headers.get("Retry-After"), time.time()),
        )
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Rejected(f"{url} is sent with a content encoding, so that its bytes cannot be addressed", url=url)
    if status == httpx.codes.OK:
        size = response.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MAX_WHOLE_FILE_BYTES:
            whole = f"the whole file ({size or 'unknown'} bytes)"
            raise Rejected(f"{url} answers a range request with {whole}; use a server with range support", url=url)
        return 0, int(size), int(size)
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if status == httpx.codes.PARTIAL_CONTENT and match and match["first"]:
        return int(match["first"]), int(match["last"]) + 1, int(match["size"])
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and match and not match["first"]:
        return 0, 0, int(match["size"])
    raise Rejected(f"{url} answered {status} {response.reason_phrase}", url=url, status=status)


def check_covers(url: str, sent: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Raise `SourceUnavailable` unless the sent bytes `[first, stop)` contain the wanted ones and few others."""
    most = max(wanted[1] - wanted[0], MAX_WHOLE_FILE_BYTES)
    if sent[0] > wanted[0] or sent[1] < wanted[1] or sent[1] - sent[0] > most:
        raise SourceUnavailable(f"{url} answered bytes [{sent[0]}, {sent[1]}) for [{wanted[0]}, {wanted[1]})", url=url)


@dataclass(slots=True)
class Filling:
    """A buffer that is filled from its beginning."""

    into: memoryview
    filled: int = 0

    @property
    def missing(self) -> int:
        """Number of bytes that are still missing."""
        return len(self.into) - self.filled

    def take(self, chunk: memoryview) -> None:
        """Append as much of the chunk as is still missing."""
        chunk = chunk[: self.missing]
        self.into[self.filled : self.filled + len(chunk)] = chunk
        self.filled += len(chunk)


async def body_into(answer: Opened, target: Filling, *, skip: int, announced: int) -> None:
    """Fill the target from the answer, without its first `skip` bytes; bytes before an interruption are kept."""
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
