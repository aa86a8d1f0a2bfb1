"""Answers to range requests: what their heads may say, and where their bodies go."""

import contextlib
import re
import time
from collections.abc import Sequence

import httpx
from aiohttp import ClientResponse

from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multipart import BadMultipart, Parts, most_bytes
from epochal.data_providers.sources.http.requester import Body
from epochal.runtime.http.http_client import is_temporary
from epochal.runtime.retry import retry_after_s

MAX_WHOLE_FILE_BYTES = 1024**2
"""Maximum size of a file that a server may send as a whole, ignoring ranges."""
MAX_SHOWN_CHARS = 100
"""Maximum number of characters of a server's text in a message."""
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,18})-(?P<last>\d{1,18})|\*)/(?P<size>\d{1,18})")


class UnfitAnswer(SourceUnavailable):
    """The answer to a request for several ranges does not hold them; each is then requested by itself."""


def check_temporary(head: ClientResponse, url: str) -> None:
    """Raise `SourceUnavailable` with the server's delay if the status means that the request may succeed later."""
    if is_temporary(head.status):
        raise SourceUnavailable(
            f"{url} answered {head.status} {visible(head.reason or '')}",
            url=url,
            status=head.status,
            retry_after_s=retry_after_s(head.headers.get("retry-after"), time.time()),
        )


def announced_range(head: ClientResponse, url: str, ranges: str) -> tuple[int, int, int]:
    """Return the bytes `[first, stop)` of the file that the body holds, and the file's size.

    Args:
        head: of the answer.
        url: for messages.
        ranges: what was requested, for messages.

    Raises:
        SourceUnavailable, Rejected: by the status or the headers, the answer does not hold the wanted bytes.
    """
    check_temporary(head, url)
    if is_encoded(head):
        raise Rejected(
            f"{url} is sent with a content encoding, so that its bytes cannot be addressed", url=url, status=head.status
        )
    if head.status == httpx.codes.OK:
        if head.content_length is None or head.content_length > MAX_WHOLE_FILE_BYTES:
            whole = f"the whole file ({'unknown' if head.content_length is None else head.content_length} bytes)"
            raise Rejected(
                f"{url} answers a range request with {whole}; use a server with range support",
                url=url,
                status=head.status,
            )
        return 0, head.content_length, head.content_length
    said = head.headers.get("content-range")
    match = _CONTENT_RANGE.fullmatch(said or "")
    if head.status == httpx.codes.PARTIAL_CONTENT and match and match["first"]:
        return int(match["first"]), int(match["last"]) + 1, int(match["size"])
    if head.status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and match and not match["first"]:
        return 0, 0, int(match["size"])
    answered = f"{url} answered {head.status} {visible(head.reason or '')}"
    if head.status == httpx.codes.PARTIAL_CONTENT:
        answered += (
            f" with {'no Content-Range' if said is None else f'Content-Range: {visible(said)}'} to a request for "
            f"{ranges}; allowed: bytes FIRST-LAST/SIZE, each of at most 18 digits"
        )
    raise Rejected(answered, url=url, status=head.status)


def visible(text: str) -> str:
    """Return the first `MAX_SHOWN_CHARS` of what a server sent, with escapes for what a terminal would obey."""
    return repr(text[:MAX_SHOWN_CHARS])[1:-1] + ("…" if len(text) > MAX_SHOWN_CHARS else "")


def is_encoded(head: ClientResponse) -> bool:
    """Return whether the body has a content encoding."""
    return head.headers.get("content-encoding", "identity") != "identity"


def version_of(head: ClientResponse) -> str:
    """Return a value that changes with the file's content, its ETag or else its modification time; "" without."""
    found: str = head.headers.get("etag") or head.headers.get("last-modified") or ""
    return found.encode("utf-8", "surrogateescape").decode("latin-1")  # it may be any bytes


def check_covers(url: str, sent: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Raise `SourceUnavailable` unless the sent bytes `[first, stop)` contain the wanted ones and few others."""
    most = max(wanted[1] - wanted[0], MAX_WHOLE_FILE_BYTES)
    if sent[0] > wanted[0] or sent[1] < wanted[1] or sent[1] - sent[0] > most:
        raise SourceUnavailable(f"{url} answered bytes [{sent[0]}, {sent[1]}) for [{wanted[0]}, {wanted[1]})", url=url)


class RangeBody(Body):
    """Fills a target from the body of one range; bytes before an interruption are kept.

    Args:
        target: what is filled.
        skip: number of the body's first bytes that are not wanted.
        announced: number of bytes that the head promises.
        url: for messages.
    """

    def __init__(self, target: Filling, skip: int, announced: int, url: str) -> None:
        self._target = target
        self._begin = target.filled
        begin = target.start + target.filled
        self._ranges = f"bytes {begin - skip}-{begin - skip + announced - 1} for {begin}-{target.stop - 1}"
        self._skip = skip
        self._announced = announced
        self._received = 0
        self._url = url

    def feed(self, data: memoryview) -> None:
        """Append what is wanted of the bytes. Raise `SourceUnavailable` if there are more than announced."""
        first = max(0, self._skip - self._received)
        self._received += len(data)
        if self._received > self._announced:
            self._target.filled = self._begin
            raise self._unavailable(f"sent more bytes than the {self._announced} that it announced, {self._ranges}")
        self._target.take(data[first:])

    def finish(self) -> None:
        """Raise `SourceUnavailable` unless as many bytes came as were announced."""
        if self._received != self._announced:
            raise self._unavailable(f"sent {self._received} bytes where it announced {self._announced}, {self._ranges}")

    def _unavailable(self, what: str) -> SourceUnavailable:
        return SourceUnavailable(f"{self._url} {what}", url=self._url)


class SeveralBody(Body):
    """Fills several targets from the parts of a body.

    Args:
        boundary: of the parts.
        targets: the ranges that were asked for, in this order.
        file_bytes: size of the file.
        url: for messages.

    Attributes:
        most_bytes: maximum number of bytes that may still come.
    """

    def __init__(self, boundary: bytes, targets: Sequence[Filling], file_bytes: int, url: str) -> None:
        self.most_bytes = most_bytes(targets)
        self._parts = Parts(boundary, targets, file_bytes)
        self._url = url

    def feed(self, data: memoryview) -> None:
        """Put the next bytes in place. Raise `UnfitAnswer` if they are not of these ranges."""
        self.most_bytes -= len(data)
        if self.most_bytes < 0:
            raise self._unfit("it is longer than the ranges")
        try:
            self._parts.feed(data)
        except BadMultipart as error:
            raise self._unfit(str(error)) from error

    def finish(self) -> None:
        """Raise `UnfitAnswer` unless every part has come; those that are right are in place."""
        try:
            self._parts.finish()
        except BadMultipart as error:
            raise self._unfit(str(error)) from error

    def break_off(self) -> None:
        """Note that the answer broke off."""
        with contextlib.suppress(BadMultipart):
            self._parts.finish()

    def _unfit(self, reason: str) -> UnfitAnswer:
        return UnfitAnswer(f"{self._url} did not answer several ranges as it was asked to: {reason}", url=self._url)
