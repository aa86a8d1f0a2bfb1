"""A mirror of a run's blobs: any HTTP server that answers `/v1/blobs/SHA256`, such as a cache before the coordinator.

The rules kept here: a mirror learns digests alone, for no token goes to it, and no redirect of it is followed. Its
bytes count only if they have the blob's digest. It is waited for within bounds: one that fails, gives other bytes or is
slow is not asked for `REST_S`, and the coordinator is asked for the bytes that are missing.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import httpx

from epochal.coordinator_client.blob_bodies import append_pieces
from epochal.coordinator_client.stored_blobs import CONNECT_TIMEOUT_S, body_from
from epochal.runtime.http.bodies import BODY_GRACE_S, MIN_BODY_BYTES_PER_S
from epochal.runtime.http.http_client import open_client, reason_of, streamed
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.http.session import Trust
from epochal.state.errors import InvalidDocument
from epochal.state.wire import Sha256

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes

log = logging.getLogger(__name__)

REST_S = 300.0
"""Time for which a mirror that failed is not asked."""
_ABSENT = frozenset({httpx.codes.NOT_FOUND, httpx.codes.GONE})


class _Unusable(Exception):
    """A mirror does not give a blob; the message says why."""


class _Absent(_Unusable):
    """It does not have it, and may have others."""


class Mirror:
    """One mirror, of one client.

    Args:
        url: its base URL: a blob is at `URL/v1/blobs/SHA256`.
        trust: as `CoordinatorClient.connect`'s `verify`.

    Raises:
        InvalidInput: the URL is invalid.
    """

    def __init__(self, url: str, trust: Trust = True) -> None:
        self._http = open_client(url, "mirror", trust)
        self._shown = without_password(url)
        self._rests_until_s = float("-inf")
        self._lacks = False
        """Whether it lacked the blob that was asked last."""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def append(self, sha256: Sha256, file: "ReceivedBytes") -> bool:
        """Append the bytes of a blob that the file lacks; return whether it holds the blob now, verified.

        What has arrived before a failure stays, unverified, unless it is wrong.
        """
        now_s = asyncio.get_running_loop().time
        if now_s() < self._rests_until_s:
            return False
        try:
            await append_pieces(self._paced(self._pieces(sha256, file.size_bytes)), file)
            if file.sha256() != sha256:
                raise InvalidDocument(f"it gave other bytes than blob {sha256}: they hash to {file.sha256()}")
        except _Absent as error:
            if not self._lacks:
                log.info("mirror_lacks_blob", extra={"mirror": self._shown, "sha256": sha256, "reason": str(error)})
            self._lacks = True
            return False
        except (_Unusable, InvalidDocument, httpx.HTTPError) as error:
            if isinstance(error, InvalidDocument):
                file.clear()
            if now_s() >= self._rests_until_s:  # others that were under way fail with it
                is_http = isinstance(error, httpx.HTTPError)
                reason = f"it does not answer: {reason_of(error, self._shown)}" if is_http else str(error)
                fields = {"mirror": self._shown, "reason": reason, "coordinator_is_asked_for_s": REST_S}
                log.warning("mirror_failed", extra=fields)
                self._rests_until_s = now_s() + REST_S
            return False
        self._lacks = False
        return True

    async def _pieces(self, sha256: Sha256, start: int) -> AsyncGenerator[bytes, None]:
        path = f"/v1/blobs/{sha256}"
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        timeout = httpx.Timeout(BODY_GRACE_S, connect=CONNECT_TIMEOUT_S)
        request = self._http.build_request("GET", path, headers=headers, timeout=timeout)
        async with streamed(self._http, request, follows=False) as answer:
            if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                kind = _Absent if answer.status_code in _ABSENT else _Unusable
                raise kind(f"it answered {answer.status_code} to GET {path}")
            async with aclosing(body_from(answer, start, f"GET {path}")) as pieces:
                async for piece in pieces:
                    yield piece

    async def _paced(self, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield pieces. Raise `_Unusable` once they come more slowly than a coordinator allows."""
        now_s = asyncio.get_running_loop().time
        began_s, moved_bytes = now_s(), 0
        async with aclosing(pieces):
            while True:
                left_s = began_s + BODY_GRACE_S + moved_bytes / MIN_BODY_BYTES_PER_S - now_s()
                try:
                    async with asyncio.timeout(max(left_s, 0.0)):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise _Unusable(f"it is too slow: {moved_bytes} bytes in {now_s() - began_s:.0f} s") from None
                moved_bytes += len(piece)
                yield piece
