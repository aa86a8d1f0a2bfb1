"""Several ranges of a file in one request: which go together, and which servers take them.

The rule kept here: a server is believed to answer several ranges (RFC 9110, 14.2) until one of its answers does not
hold exactly them, or breaks off `MAX_FAILURES` times in a row; from then on it is asked for one range at a time.
"""

import logging
from collections.abc import Sequence
from operator import attrgetter

import httpx
from aiohttp import ClientResponse

from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multipart import boundary_of
from epochal.data_providers.sources.http.range_answers import (
    SeveralBody,
    UnfitAnswer,
    check_temporary,
    is_encoded,
    version_of,
    visible,
)

MAX_PARTS = 64
"""Maximum number of ranges of one request: its header stays below 4 KiB, and servers limit the number."""
MAX_SEVERAL_BYTES = 2 * 1024**2
"""Maximum number of bytes of one request for several ranges, so that several connections share what is wanted."""
MAX_FAILURES = 2

log = logging.getLogger(__name__)


class Servers:
    """Remembers which servers take requests for several ranges."""

    def __init__(self) -> None:
        self._failures: dict[object, int] = {}
        self._single: set[object] = set()

    def takes_several(self, server: object) -> bool:
        """Return whether the server may be asked for several ranges."""
        return server not in self._single

    def answered(self, server: object) -> None:
        """Note that the server's answer held what was asked for."""
        self._failures.pop(server, None)

    def failed(self, server: object, error: Exception) -> None:
        """Note that an answer did not come, or broke off."""
        self._failures[server] = self._failures.get(server, 0) + 1
        if self._failures[server] >= MAX_FAILURES:
            self.refused(server, error)

    def refused(self, server: object, error: Exception) -> None:
        """Note that an answer did not hold what was asked for."""
        if server not in self._single:
            self._single.add(server)
            log.info("one_range_at_a_time", extra={"reason": str(error)})


def plan_groups(targets: Sequence[Filling]) -> list[list[Filling]]:
    """Return the ranges of one file in groups for one request each, by their places.

    Ranges that overlap or touch are not in one group, because a server may join them (RFC 9110, 15.3.7.2).
    """
    groups: list[list[Filling]] = []
    held_bytes = 0
    last: list[Filling] = []
    for target in sorted(targets, key=attrgetter("start")):
        held_bytes += target.missing
        if last and len(last) < MAX_PARTS and held_bytes <= MAX_SEVERAL_BYTES and last[-1].stop < target.start:
            last.append(target)
        else:
            last = [target]
            groups.append(last)
            held_bytes = target.missing
    return groups


def range_field(targets: Sequence[Filling]) -> str:
    """Return the value of the `Range` header for the missing bytes of these targets."""
    return "bytes=" + ",".join(f"{target.start + target.filled}-{target.stop - 1}" for target in targets)


def several_body(head: ClientResponse, url: str, file: SourceFile, targets: Sequence[Filling]) -> SeveralBody:
    """Return what puts the parts of an answer in place.

    Raises:
        UnfitAnswer: the answer does not hold these ranges of this version of the file.
        SourceUnavailable: the status says that the request may succeed later.
    """
    check_temporary(head, url)
    boundary = boundary_of(head.headers.get("content-type", ""))
    if head.status != httpx.codes.PARTIAL_CONTENT or boundary is None:
        raise UnfitAnswer(
            f"{url} answered {head.status} {visible(head.reason or '')} to a request for several ranges", url=url
        )
    if is_encoded(head) or version_of(head) != file.version:
        raise UnfitAnswer(f"{url} answered several ranges of something else", url=url)
    body = SeveralBody(boundary, targets, file.size_bytes, url)
    if head.content_length is not None and head.content_length > body.most_bytes:
        most = f"for ranges that need at most {body.most_bytes}"
        raise UnfitAnswer(f"{url} promised {head.content_length} bytes {most}", url=url)
    return body
