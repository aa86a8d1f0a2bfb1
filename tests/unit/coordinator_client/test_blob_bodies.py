"""Bodies of blobs over HTTP: what a cancelled and a slow download leave in their files."""

import asyncio
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.responses import StreamingResponse

from epochal.coordinator_client.blob_bodies import APPENDED_BYTES, append_blob
from epochal.state.wire import Sha256, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.simulate.virtual_time import run_virtually

BLOB = bytes(range(256)) * (3 * APPENDED_BYTES // 256)


class SlowFile:
    """A received file whose first long write waits until it is let go."""

    def __init__(self) -> None:
        self.data = b""
        self.is_writing, self.goes_on = threading.Event(), threading.Event()

    @property
    def size_bytes(self) -> int:
        return len(self.data)

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


class SlowBody(httpx.AsyncByteStream):
    """Short pieces of a blob, one in a second."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(1)
            yield piece


def test_slow_download_is_written_as_it_arrives() -> None:
    pieces = [bytes([number]) * 1000 for number in range(5)]
    written: list[tuple[float, int]] = []

    class File(SlowFile):
        def append(self, data: bytes) -> None:
            self.data += data
            if data:
                written.append((asyncio.get_running_loop().time(), len(self.data)))

    async def download() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=SlowBody(pieces)))
        async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
            await append_blob(http, "/v1/blobs/x", {}, File())  # type: ignore[arg-type]

    run_virtually(download())
    assert written == [(second, 1000 * second) for second in range(1, 6)]
