"""A blob that arrives: what its writes and syncs behind the event loop do when they fail or must end."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest

from epochal.coordinator.store.files.arriving import (
    MAX_PIECE_BYTES,
    MIN_PIECE_BYTES,
    PIECES_BYTES,
    SYNC_BYTES,
    piece_bytes,
)
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.state.errors import StoreFailed
from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.stored_blobs import blob_bytes

LARGE = bytes(SYNC_BYTES + 3 * MAX_PIECE_BYTES)
DIGEST = Sha256(sha256_hex(LARGE))
BOUND_S = 30.0


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 200_000):
        yield data[start : start + 200_000]


def files(run_dir: Path) -> list[Path]:
    return [path for path in (run_dir / "blobs").rglob("*") if path.is_file()]


def test_pieces_are_smaller_the_more_blobs_arrive() -> None:
    assert piece_bytes(1) == piece_bytes(PIECES_BYTES // MAX_PIECE_BYTES) == MAX_PIECE_BYTES
    assert piece_bytes(2 * PIECES_BYTES // MAX_PIECE_BYTES) == MAX_PIECE_BYTES // 2
    assert piece_bytes(100_000) == MIN_PIECE_BYTES


async def test_large_blob_is_synced_while_it_arrives(tmp_path: Path) -> None:
    synced: list[int] = []

    def sync_data(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    blobs = await DirectoryBlobs.open(tmp_path, len(LARGE), Disk(sync_data=sync_data))
    await blobs.receive(DIGEST, len(LARGE), pieces(LARGE))
    (size,) = synced
    assert SYNC_BYTES <= size <= len(LARGE)
    assert await blob_bytes(blobs, DIGEST) == LARGE


async def test_sync_that_fails_on_the_way_keeps_nothing(tmp_path: Path) -> None:
    def sync_data(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    blobs = await DirectoryBlobs.open(tmp_path, len(LARGE), Disk(sync_data=sync_data))
    with pytest.raises(StoreFailed):
        await blobs.receive(DIGEST, len(LARGE), pieces(LARGE))
    assert files(tmp_path) == []
    assert blobs.total_bytes == 0


async def test_piece_for_which_memory_lacks_a_moment_is_written_again(tmp_path: Path) -> None:
    failures = iter([errno.ENOMEM])

    def write(file: BinaryIO, data: Buffer) -> None:
        file.write(data[: len(data) // 2])
        for code in failures:
            raise OSError(code, os.strerror(code))
        REAL_DISK.write(file, data[len(data) // 2 :])

    blobs = await DirectoryBlobs.open(tmp_path, len(LARGE), Disk(write))
    await blobs.receive(DIGEST, len(LARGE), pieces(LARGE))
    assert await blob_bytes(blobs, DIGEST) == LARGE


async def test_receiver_cancelled_during_a_write_leaves_no_file(tmp_path: Path) -> None:
    is_writing, may_write = threading.Event(), threading.Event()

    def write(file: BinaryIO, data: Buffer) -> None:
        is_writing.set()
        assert may_write.wait(BOUND_S)
        REAL_DISK.write(file, data)

    blobs = await DirectoryBlobs.open(tmp_path, len(LARGE), Disk(write))
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(blobs.receive(DIGEST, len(LARGE), pieces(LARGE)))
        assert await asyncio.to_thread(is_writing.wait, BOUND_S)
        receiving.cancel()
        may_write.set()
    assert files(tmp_path) == []
    assert blobs.total_bytes == 0
