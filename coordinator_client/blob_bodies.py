"""Bodies of blobs over a general HTTP client, continued where they break off."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import httpx

from coordinator_client.plain_blobs import BLOB_TIMEOUT_S, CONNECT_TIMEOUT_S, MAX_BLOB_ANSWERS, error_of
from runtime.http_client import raw_body, read_whole, reason_of, streamed
from runtime.worker_thread import finished
from state.errors import CoordinatorUnreachable, InvalidDocument

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from runtime.spool_part import ReceivedBytes

APPENDED_BYTES = 1024 * 1024
"""Bytes of a download that are hashed and written at a time."""
INLINE_BYTES = 64 * 1024
"""So many are written on the event loop: handing them to another thread would take longer."""


async def append_blob(http: httpx.AsyncClient, path: str, headers: Mapping[str, str], file: "ReceivedBytes") -> None:
    """Append the bytes of a blob that the file lacks, unverified. Raises as `blob_pieces`."""
    waiting: list[bytes] = []
    waiting_bytes = 0
    try:
        async with aclosing(blob_pieces(http, path, headers, file.size_bytes)) as pieces:
            async for piece in pieces:
                waiting.append(piece)
                waiting_bytes += len(piece)
                if waiting_bytes >= APPENDED_BYTES:
                    await _append(file, waiting)
                    waiting, waiting_bytes = [], 0
    finally:
        await _append(file, waiting)


async def blob_pieces(
    http: httpx.AsyncClient, path: str, headers: Mapping[str, str], start: int = 0
) -> AsyncGenerator[bytes, None]:
    """Yield a blob's bytes from `start` on as they arrive. What breaks off is continued where it broke off.

    Raises:
        Refused, CoordinatorUnreachable, InvalidDocument: as `error_of`.
    """
    held_bytes = start
    for answer in range(1, MAX_BLOB_ANSWERS + 1):
        before_bytes = held_bytes
        try:
            async with aclosing(_blob_from(http, path, headers, held_bytes)) as pieces:
                async for piece in pieces:
                    held_bytes += len(piece)
                    yield piece
            return
        except CoordinatorUnreachable:
            if held_bytes <= before_bytes or answer == MAX_BLOB_ANSWERS:
                raise


async def _blob_from(
    http: httpx.AsyncClient, path: str, headers: Mapping[str, str], start: int
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a blob from `start` on, as many as arrive."""
    timeout = httpx.Timeout(BLOB_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    headers = {**headers, "Range": f"bytes={start}-"} if start else headers
    request = http.build_request("GET", path, headers=headers, timeout=timeout)
    try:
        async with streamed(http, request) as answer:
            skipped_bytes = 0
            if answer.status_code == httpx.codes.OK:
                skipped_bytes = start  # the whole blob again
            elif answer.status_code != httpx.codes.PARTIAL_CONTENT:
                raise error_of(await read_whole(answer), f"GET {path}")
            elif not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise InvalidDocument(f"GET {path} answered with another range than the one from {start} on")
            async for piece in raw_body(answer):
                new = piece[skipped_bytes:]
                skipped_bytes -= len(piece) - len(new)
                if new:
                    yield new
    except httpx.HTTPError as error:
        url = str(http.base_url)
        message = f"{url} does not answer GET {path}: {reason_of(error, url)}"
        raise CoordinatorUnreachable(message, url=url) from error


async def _append(file: "ReceivedBytes", pieces: list[bytes]) -> None:
    """Append to a file: few bytes at once, many in another thread. All of them, even if the caller is cancelled."""
    data = b"".join(pieces)
    if len(data) <= INLINE_BYTES:
        file.append(data)
    else:
        await finished(lambda: file.append(data))
