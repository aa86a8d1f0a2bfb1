"""Bodies of blobs, continued where they break off."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import httpx

from epochal.coordinator_client.stored_blobs import (
    BLOB_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FIRST_DELAY_S,
    MAX_STORE_REFUSALS,
    StoredBlobs,
    StoredDownload,
    StoreRefusal,
    body_from,
)
from epochal.runtime.http.aiohttp_transport import PlainRequest
from epochal.runtime.http.http_client import error_of, read_whole, reason_of, streamed
from epochal.runtime.http.redacted_urls import without_password
from epochal.runtime.worker_thread import finished
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes
    from epochal.state.model.tensors import TensorStream

log = logging.getLogger(__name__)

MAX_BLOB_ANSWERS = 64
"""Maximum number of answers for one blob: a broken body is continued as long as each answer brings some bytes."""
APPENDED_BYTES = 1024 * 1024
"""Bytes of a download that are hashed and written at a time."""
APPENDED_S = 0.5
"""Time after which the bytes that have arrived are written, so that a slow download shows progress."""
LOOK_FOR_OBJECT, LOOK_AT_BYTES = "?looks=1", "?looks=2"
"""Ask the coordinator to check whether an object is still there, and whether its bytes are the blob's."""
INLINE_BYTES = 64 * 1024
"""So many are written on the event loop: handing them to another thread would take longer."""


async def append_held_blob(
    http: httpx.AsyncClient, sha256: Sha256, headers: Mapping[str, str], file: "ReceivedBytes", stored: StoredBlobs
) -> None:
    """Append the bytes of a coordinator's blob that the file lacks; those of an object store are compared.

    If a store gives other bytes, the coordinator is asked to check them, and the file starts again.

    Args:
        http: sends requests to the coordinator.
        sha256: names the blob.
        headers: of each request.
        file: takes the bytes.
        stored: reads it from an object store if the coordinator leads there.

    Raises:
        Refused: `not-found`, if the coordinator finds that the object was deleted or overwritten, or the store goes on
            giving other bytes; and as `blob_pieces`.
        CoordinatorUnreachable, InvalidDocument: as `blob_pieces`.
    """
    path, problem = f"/v1/blobs/{sha256}", ""
    for _ in range(MAX_STORE_REFUSALS):
        download = StoredDownload(stored)
        try:
            await append_blob(http, f"{path}{LOOK_AT_BYTES}" if problem else path, headers, file, download)
            if not download.place or file.sha256() == sha256:
                return
            problem = f"{download.place} has other bytes than blob {sha256}: they hash to {file.sha256()}"
        except InvalidDocument as error:  # longer than the blob, or another range
            if not download.place:
                raise
            problem = f"{download.place} has other bytes than blob {sha256}: {error.message}"
        log.warning("blob_with_wrong_digest", extra={"sha256": sha256, "reason": problem})
        file.clear()
    raise Refused(Refusal.NOT_FOUND, problem)


async def append_blob(
    http: httpx.AsyncClient,
    path: str,
    headers: Mapping[str, str],
    file: "ReceivedBytes",
    stored: StoredDownload | None = None,
) -> None:
    """Append the bytes of a blob that the file lacks, unverified. Takes and raises the same as `blob_pieces`."""
    await append_pieces(blob_pieces(http, path, headers, file.size_bytes, stored), file)


async def append_pieces(source: AsyncGenerator[bytes, None], file: "ReceivedBytes") -> None:
    """Append pieces to a file as they arrive, many of them at a time; close their source."""
    waiting: list[bytes] = []
    waiting_bytes = 0
    loop = asyncio.get_running_loop()
    written_s = loop.time()
    try:
        async with aclosing(source) as pieces:
            async for piece in pieces:
                waiting.append(piece)
                waiting_bytes += len(piece)
                if waiting_bytes >= APPENDED_BYTES or loop.time() - written_s >= APPENDED_S:
                    written_s = loop.time()
                    taken, waiting, waiting_bytes = waiting, [], 0  # first: the wait may end cancelled
                    await _append(file, taken)
    finally:
        await _append(file, waiting)


async def blob_pieces(
    http: httpx.AsyncClient, path: str, headers: Mapping[str, str], start: int = 0, stored: StoredDownload | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield a blob's bytes from `start` on as they arrive. A broken transfer is resumed.

    Args:
        http: sends requests to the coordinator.
        path: of the blob.
        headers: of each request.
        start: number of bytes that the caller has.
        stored: reads it from an object store if the coordinator leads there.

    Raises:
        Refused: `not-found`, if the store refuses a blob that the coordinator has; and as `error_of`.
        CoordinatorUnreachable, InvalidDocument: as `error_of`.
    """
    held_bytes, refusals = start, 0
    for answer in range(1, MAX_BLOB_ANSWERS + 1):
        before_bytes = held_bytes
        asked = f"{path}{LOOK_FOR_OBJECT}" if refusals and "?" not in path else path
        try:
            async with aclosing(_blob_from(http, asked, headers, held_bytes, stored)) as pieces:
                async for piece in pieces:
                    held_bytes += len(piece)
                    yield piece
            return
        except (CoordinatorUnreachable, Refused) as error:
            is_broken = isinstance(error, CoordinatorUnreachable) or error.kind is Refusal.STORE_FAILED
            if not is_broken or held_bytes <= before_bytes or answer == MAX_BLOB_ANSWERS:
                raise
        except StoreRefusal as refusal:
            refusals += 1
            if refusals == MAX_STORE_REFUSALS:
                raise Refused(Refusal.NOT_FOUND, str(refusal)) from refusal
            await asyncio.sleep(FIRST_DELAY_S * 2 ** (refusals - 1))


async def _blob_from(
    http: httpx.AsyncClient, path: str, headers: Mapping[str, str], start: int, stored: StoredDownload | None
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a blob from `start` on, as many as arrive."""
    timeout = httpx.Timeout(BLOB_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    headers = {**headers, "Range": f"bytes={start}-"} if start else headers
    url = str(http.base_url).rstrip("/")
    asked = PlainRequest("GET", url + path, timeout, headers)
    try:
        async with streamed(http, asked, follows=stored is None) as answer:
            if stored is not None and answer.next_request is not None:
                place, request = answer.next_request.url, answer.request
                # as where a proxy leads from http to https
                is_same = (place.host, place.path) == (request.url.host, request.url.path)
                led = _blob_from(http, path, headers, start, None) if is_same else stored.pieces(str(place), start)
                async with aclosing(led) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                raise error_of(await read_whole(answer), f"GET {path}")
            async with aclosing(body_from(answer, start, f"GET {path}")) as pieces:
                async for piece in pieces:
                    yield piece
    except httpx.HTTPError as error:
        shown = without_password(url)
        message = f"{shown} does not answer GET {path}: {reason_of(error, url, has_answered=True)}"
        raise CoordinatorUnreachable(message, url=shown) from error


async def _append(file: "ReceivedBytes", pieces: list[bytes]) -> None:
    """Append to a file: few bytes at once, many in another thread. All of them, even if the caller is cancelled."""
    data = b"".join(pieces)
    if len(data) <= INLINE_BYTES:
        file.append(data)
    else:
        await finished(lambda: file.append(data))


class Pieces:
    """The body of a request that is written piece by piece, from the beginning each time that it is sent."""

    def __init__(self, stream: "TensorStream | SentBytes") -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for piece in self._stream.pieces():
            yield piece
