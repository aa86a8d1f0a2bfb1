"""Bodies of blobs over a general HTTP client: what a cancelled download leaves in its file."""

import asyncio
import threading

import httpx
import pytest
from starlette.responses import StreamingResponse

from coordinator_client.blob_bodies import APPENDED_BYTES, append_blob
from state.wire import Sha256, sha256_hex
from tests.support.bounds import BOUND_S

BLOB = bytes(range(256)) * (3 * APPENDED_BYTES // 256)


class SlowFile:
    """A received file whose first long write waits until it is let go."""

    def __init__(self) -> None:
        self.data = b""
        self.is_writing, self.goes_on = threading.Event(), threading.Event()

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def reserve(self, size_bytes: int) -> None:
        assert size_bytes <= len(BLOB)

    def append(self, data: bytes) -> None:
        self.is_writing.set()
        assert self.goes_on.wait(BOUND_S)
        self.data += data

    def sha256(self) -> Sha256:
        return sha256_hex(self.data)

    def clear(self) -> None:
        self.data = b""


async def test_cancelled_download_keeps_each_byte_once() -> None:
    async def serve(scope: object, receive: object, send: object) -> None:
        async def pieces() -> object:
            for start in range(0, len(BLOB), 65536):
                yield BLOB[start : start + 65536]

        await StreamingResponse(pieces())(scope, receive, send)  # type: ignore[arg-type]

    file = SlowFile()
    transport = httpx.ASGITransport(serve)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
        fetching = asyncio.create_task(append_blob(http, "/v1/blobs/x", {}, file))  # type: ignore[arg-type]
        assert await asyncio.to_thread(file.is_writing.wait, 10)
        fetching.cancel()
        file.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching
    assert file.data == BLOB[: len(file.data)]
    assert len(file.data) >= APPENDED_BYTES
