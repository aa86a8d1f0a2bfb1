"""The run directory on a disk that fails: what is blocked leaves nothing and goes on, what is broken stays so."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import epochal.coordinator.store.directory.failures
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.directory.run_directory import RunDirectory, RunDirectoryReader
from epochal.state.errors import StoreBlocked, StoreFailed
from epochal.state.wire import sha256_hex
from tests.support.data.recording_disk import FailingDisk
from tests.support.data.stored_blobs import blob_bytes

MAX_BLOB_BYTES = 10_000_000
BLOCKING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
BREAKING = (errno.EIO, errno.EROFS)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.coordinator.store.directory.failures, "PASSING_S", 0.0)


@pytest.fixture
def failing() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
async def store(tmp_path: Path, failing: FailingDisk) -> AsyncIterator[RunDirectory]:
    opened = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES, failing.disk)
    await opened.journal.open_segment(Snapshot(0, b"start"))
    await opened.journal.append(JournalRecord(1, b"one"))
    yield opened
    await opened.aclose()


async def kept(run_dir: Path) -> list[bytes]:
    """Return the bodies of the records of all segments, as another process reads them; nothing may be torn."""
    journal = RunDirectoryReader(run_dir).journal
    found = [record.body async for segment in journal.history() for record in segment.records]
    assert journal.torn_bytes == 0
    return found


@pytest.mark.parametrize("code", BLOCKING, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("call", ["write_errno", "sync_errno"])
async def test_record_that_is_blocked_is_undone_and_kept_later(
    tmp_path: Path, store: RunDirectory, failing: FailingDisk, call: str, code: int
) -> None:
    setattr(failing, call, code)
    for _ in range(3):
        with pytest.raises(StoreBlocked) as caught:
            await store.journal.append(JournalRecord(2, b"two"))
        assert caught.value.is_full is (code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    setattr(failing, call, 0)
    await store.journal.append(JournalRecord(2, b"two"))
    assert await kept(tmp_path) == [b"one", b"two"]


async def test_record_that_is_blocked_leaves_no_torn_bytes(
    tmp_path: Path, store: RunDirectory, failing: FailingDisk
) -> None:
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreBlocked):
        await store.journal.append(JournalRecord(2, b"two"))
    assert await kept(tmp_path) == [b"one"]


@pytest.mark.parametrize("code", BREAKING, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("call", ["write_errno", "sync_errno"])
async def test_run_directory_on_a_broken_disk_keeps_nothing_more(
    store: RunDirectory, failing: FailingDisk, call: str, code: int
) -> None:
    setattr(failing, call, code)
    with pytest.raises(StoreFailed) as caught:
        await store.journal.append(JournalRecord(2, b"two"))
    assert not isinstance(caught.value, StoreBlocked)
    setattr(failing, call, 0)
    with pytest.raises(StoreFailed):
        await store.journal.append(JournalRecord(2, b"two"))
    with pytest.raises(StoreFailed):
        await store.save_state_file("text")


async def test_record_whose_undoing_breaks_keeps_nothing_more(store: RunDirectory, failing: FailingDisk) -> None:
    failing.write_errno, failing.sync_errno = errno.ENOSPC, errno.EIO
    with pytest.raises(StoreBlocked):
        await store.journal.append(JournalRecord(2, b"two"))
    failing.write_errno = 0
    for _ in range(2):
        with pytest.raises(StoreFailed, match="Input/output") as caught:
            await store.journal.append(JournalRecord(2, b"two"))
        assert not isinstance(caught.value, StoreBlocked)
        failing.sync_errno = 0


@pytest.mark.parametrize("successful_syncs", [0, 1], ids=["its content", "its name"])
async def test_segment_that_is_blocked_is_opened_later(
    tmp_path: Path, store: RunDirectory, failing: FailingDisk, successful_syncs: int
) -> None:
    failing.sync_errno, failing.after_calls = errno.ENOSPC, successful_syncs
    with pytest.raises(StoreBlocked):
        await store.journal.open_segment(Snapshot(1, b"later"))
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == ["00000000.log"]
    failing.sync_errno = 0
    await store.journal.append(JournalRecord(2, b"two"))
    await store.journal.open_segment(Snapshot(2, b"later"))
    await store.journal.append(JournalRecord(3, b"three"))
    assert await kept(tmp_path) == [b"one", b"two", b"three"]


async def test_what_passes_is_waited_for(
    tmp_path: Path, store: RunDirectory, failing: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.coordinator.store.directory.failures, "PASSING_S", 60.0)
    monkeypatch.setattr(epochal.coordinator.store.directory.failures, "PASSING_PAUSE_S", 0.0)
    failing.sync_errno, attempts = errno.EMFILE, failing.disk.sync

    def sync(descriptor: int) -> None:
        failing.sync_errno = errno.EMFILE if failing.call_count < 5 else 0
        attempts(descriptor)

    object.__setattr__(failing.disk, "sync", sync)
    await store.journal.append(JournalRecord(2, b"two"))
    assert failing.call_count == 5
    assert await kept(tmp_path) == [b"one", b"two"]


async def test_state_file_that_is_blocked_stays_as_it_was(
    tmp_path: Path, store: RunDirectory, failing: FailingDisk
) -> None:
    await store.save_state_file("old")
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreBlocked):
        await store.save_state_file("new")
    assert (tmp_path / "state.toml").read_text() == "old"
    assert not (tmp_path / "state.toml.new").exists()


async def test_blob_that_is_blocked_says_its_size_and_is_kept_later(
    tmp_path: Path, store: RunDirectory, failing: FailingDisk
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


async def test_room_that_is_missing_is_told(tmp_path: Path, store: RunDirectory, failing: FailingDisk) -> None:
    before = sorted(os.listdir(tmp_path))
    await store.check_room(100_000)
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreBlocked):
        await store.check_room(100_000)
    assert sorted(os.listdir(tmp_path)) == before
