"""A run in a folder on a disk that is full: what is blocked leaves nothing and goes on; files fail as blobs do."""

import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import epochal.coordinator.store.failures
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.sql.sqlite import failure_of
from epochal.coordinator.store.store import Store
from epochal.state.errors import StoreBlocked
from epochal.state.wire import sha256_hex
from tests.support.data.recording_disk import FailingDisk
from tests.support.data.stored_blobs import blob_bytes

MAX_BLOB_BYTES = 10_000_000


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.coordinator.store.failures, "PASSING_S", 0.0)


@pytest.fixture
def failing() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
async def store(tmp_path: Path, failing: FailingDisk) -> AsyncIterator[Store]:
    opened = await open_folder_store(tmp_path, MAX_BLOB_BYTES, disk=failing.disk)
    await opened.journal.open_segment(Snapshot(0, b"start"))
    await opened.journal.append(JournalRecord(1, b"one"))
    yield opened
    await opened.aclose()


async def test_state_file_that_is_blocked_stays_as_it_was(tmp_path: Path, store: Store, failing: FailingDisk) -> None:
    await store.place.save_state_file("old")
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreBlocked):
        await store.place.save_state_file("new")
    assert (tmp_path / "state.toml").read_text() == "old"
    assert not (tmp_path / "state.toml.new").exists()


async def test_blob_that_is_blocked_says_its_size_and_is_kept_later(
    tmp_path: Path, store: Store, failing: FailingDisk
) -> None:
    data = bytes(range(256)) * 9_000  # more than is written at once

    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    digest = sha256_hex(data)
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreBlocked) as caught:
        await store.blobs.receive(digest, len(data), body())
    assert caught.value.needed_bytes == len(data)
    assert store.blobs.total_bytes == 0
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []
    failing.write_errno = 0
    await store.blobs.receive(digest, len(data), body())
    assert await blob_bytes(store.blobs, digest) == data
    assert b"".join([piece async for piece in store.blobs.stream(digest, 5, len(data))]) == data[5:]


async def test_room_that_is_missing_is_told(tmp_path: Path, store: Store, failing: FailingDisk) -> None:
    before = sorted(os.listdir(tmp_path))
    await store.check_room(100_000)
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreBlocked):
        await store.check_room(100_000)
    assert sorted(os.listdir(tmp_path)) == before


def test_log_whose_shared_memory_finds_no_room_is_blocked() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    failure = failure_of("a store", error)
    assert isinstance(failure, StoreBlocked)
    assert failure.is_full
