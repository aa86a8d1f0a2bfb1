"""Blobs between a client's spool and a coordinator that is reached without TLS and without a proxy.

It is a shorter way for the same requests as those of `coordinator_client/http.py`, which go on where this one cannot.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.http.blocking_bodies import NotPlain, OpenFile, PlainAnswer, PlainHttp, PlainTimeouts, plain_place
from epochal.runtime.http.http_client import is_temporary, reason_of, refusal_in
from epochal.runtime.http.redacted_urls import without_password
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes

CONNECT_TIMEOUT_S = 5.0
BLOB_TIMEOUT_S = 60.0
"""Maximum time without progress in a blob's transfer."""
MAX_BLOB_ANSWERS = 64
"""Maximum number of answers for one blob: a broken body is continued as long as each answer brings some bytes."""
KEEP_ALIVE_S = 60.0


class PlainBlobs:
    """Transfers of blobs with one coordinator.

    Args:
        url: the coordinator's, for messages.
        http: transfers.
    """

    def __init__(self, url: str, http: PlainHttp) -> None:
        self._url = url
        self._http = http

    @classmethod
    def at(cls, url: str, reach: Reach | None = None) -> "PlainBlobs | None":
        """Return the short way to the coordinator at this URL, if `reach` allows its address; None otherwise."""
        place = plain_place(url)
        if place is None:
            return None
        return cls(url, PlainHttp(place, PlainTimeouts(CONNECT_TIMEOUT_S, BLOB_TIMEOUT_S, KEEP_ALIVE_S), reach))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def put(self, path: str, headers: Mapping[str, str], file: "SentBytes") -> bool:
        """Deliver a blob; return False if a general client has to.

        Raises:
            Refused, CoordinatorUnreachable, InvalidDocument: as `error_of`.
        """
        descriptor = file.descriptor
        body = file.to_bytes() if descriptor is None else OpenFile(descriptor, file.size_bytes, file.start_bytes)
        headers = {**headers, "Content-Type": "application/octet-stream"}
        try:
            answer = await self._http.put(path, headers, body)
        except NotPlain:
            return False
        except OSError as error:
            raise self._unreachable(f"PUT {path}", error) from error
        if not httpx.codes.is_success(answer.status):
            raise error_of(_as_httpx(answer), f"PUT {path}")
        return True

    async def get(self, path: str, headers: Mapping[str, str], file: "ReceivedBytes") -> bool:
        """Append the bytes of a blob that the file lacks; return False if a general client has to.

        Raises:
            Refused, CoordinatorUnreachable, InvalidDocument: as `error_of`; the file holds what has arrived.
        """
        for attempt in range(1, MAX_BLOB_ANSWERS + 1):
            before_bytes = file.size_bytes
            try:
                await self._get_rest(path, headers, file)
            except NotPlain:
                return False
            except OSError as error:
                if file.size_bytes <= before_bytes or attempt == MAX_BLOB_ANSWERS:
                    raise self._unreachable(f"GET {path}", error) from error
            else:
                break
        return True

    async def _get_rest(self, path: str, headers: Mapping[str, str], file: "ReceivedBytes") -> None:
        start = file.size_bytes
        if start:
            headers = {**headers, "Range": f"bytes={start}-"}

        def check(answer: PlainAnswer) -> int:
            """Return how many bytes of the answer the file holds already."""
            if answer.status == httpx.codes.OK:
                return start  # the whole blob again
            if not answer.headers.get("content-range", "").startswith(f"bytes {start}-"):
                raise InvalidDocument(f"GET {path} answered with another range than the one from {start} on")
            return 0

        def take(answer: PlainAnswer, offset: int, piece: memoryview) -> None:
            new = piece[max(0, check(answer) - offset) :]
            if offset == 0:
                file.reserve(start - check(answer) + int(answer.headers["content-length"]))
            if new:
                file.append(new)

        answer = await self._http.get(path, headers, take)
        if answer.status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            raise error_of(_as_httpx(answer), f"GET {path}")

    def _unreachable(self, request: str, error: OSError) -> CoordinatorUnreachable:
        shown = without_password(self._url)
        return CoordinatorUnreachable(f"{shown} does not answer {request}: {reason_of(error, self._url)}", url=shown)


def _as_httpx(answer: PlainAnswer) -> httpx.Response:
    return httpx.Response(answer.status, headers=dict(answer.headers), content=answer.body)


def error_of(answer: httpx.Response, request: str) -> Refused | CoordinatorUnreachable | InvalidDocument:
    """Return the error that an answer of 3xx, 4xx or 5xx means: a refusal, or that something else answered."""
    status = answer.status_code
    if refusal := refusal_in(answer):
        return refusal
    if is_temporary(status):
        return CoordinatorUnreachable(f"{request} answered {status}", status=status)
    return InvalidDocument(f"{request} answered {status}, not as a coordinator would", status=status)
