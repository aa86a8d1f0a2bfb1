"""The run directory: its lock, what is durable, and what a crash or a failing disk leaves."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.directory.blobs import DirectoryBlobs
from epochal.coordinator.store.directory.keys import DirectoryKeys
from epochal.coordinator.store.directory.run_directory import RunDirectory, RunDirectoryReader
from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.state.errors import StoreFailed
from epochal.state.wire import sha256_hex
from tests.support.data.recording_disk import RecordingDisk

MAX_BLOB_BYTES = 1_000


async def begun(run_dir: Path, disk: Disk = REAL_DISK) -> RunDirectory:
    store = await RunDirectory.open(run_dir, MAX_BLOB_BYTES, disk)
    await store.journal.open_segment(Snapshot(0, b"start"))
    return store


async def test_run_directory_cuts_a_torn_record_and_appends_after_it(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    await store.journal.append(JournalRecord(1, b"one"))
    await store.aclose()
    path = tmp_path / "journal" / "00000000.log"
    path.write_bytes(path.read_bytes() + b"torn")
    again = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    loaded = await again.journal.load()
    assert loaded is not None
    assert again.journal.torn_bytes == 4
    await again.journal.append(JournalRecord(2, b"two"))
    await again.aclose()
    (found,) = [item async for item in RunDirectoryReader(tmp_path).journal.history()]
    assert [record.body for record in found.records] == [b"one", b"two"]


async def test_reader_is_told_where_a_run_is_served_until_it_is_not(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    reader = RunDirectoryReader(tmp_path)
    assert await reader.served_at() is None
    store.note_address("http://127.0.0.1:8000")
    assert await reader.served_at() == await store.served_at() == "http://127.0.0.1:8000"
    with pytest.raises(StoreFailed, match=rf"another coordinator already \(process {os.getpid()}\)"):
        await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    await store.aclose()
    assert await reader.served_at() is None


@pytest.mark.parametrize("lock", [b"%d\nhttp://127.0.0.1:8000\n", b"nobody\nhttp://127.0.0.1:8000\n", b"\xff\n"])
async def test_address_of_a_coordinator_that_was_killed_is_not_told(tmp_path: Path, lock: bytes) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    (tmp_path / "lock").write_bytes(lock.replace(b"%d", b"%d" % ended.pid))
    assert await RunDirectoryReader(tmp_path).served_at() is None


async def two_segments(run_dir: Path) -> tuple[Path, Path]:
    """Make segments with one record each, close the run directory, and return their files."""
    store = await begun(run_dir)
    await store.journal.append(JournalRecord(1, b"one"))
    await store.journal.open_segment(Snapshot(1, b"again"))
    await store.journal.append(JournalRecord(2, b"two"))
    await store.aclose()
    first, second = sorted((run_dir / "journal").iterdir())
    return first, second


async def history(run_dir: Path) -> list[list[int]]:
    """Return the sequence numbers of each segment's records, as a reader sees them."""
    segments = [item async for item in RunDirectoryReader(run_dir).journal.history()]
    return [[record.sequence for record in segment.records] for segment in segments]


async def test_newest_segment_that_is_missing_is_named_at_a_start_and_in_reading(tmp_path: Path) -> None:
    _, newest = await two_segments(tmp_path)
    newest.unlink()
    store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    with pytest.raises(StoreFailed, match=r"00000001\.log is missing.*--restored"):
        await store.journal.load()
    await store.aclose()
    with pytest.raises(StoreFailed, match="is missing"):
        await history(tmp_path)


async def test_newest_segment_that_is_damaged_at_its_snapshot_says_how_to_go_on(tmp_path: Path) -> None:
    _, newest = await two_segments(tmp_path)
    os.truncate(newest, 30)
    for is_restored in (False, True):
        store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
        with pytest.raises(StoreFailed, match=r"take 00000001\.log away and start with --restored.*00000000\.log"):
            await store.journal.load(is_restored=is_restored)
        await store.aclose()
    newest.unlink()
    store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    assert await store.journal.load(is_restored=True) is not None
    await store.aclose()


async def test_older_segments_that_are_missing_are_told_and_not_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = await two_segments(tmp_path)
    for is_missing in (False, True):
        store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
        loaded = await store.journal.load()
        await store.aclose()
        assert loaded is not None
        assert [record.sequence for record in loaded.records] == [2]
        assert ("journal_segments_missing" in caplog.text) == is_missing
        first.unlink(missing_ok=True)


async def test_middle_segment_that_is_missing_says_what_it_costs(tmp_path: Path) -> None:
    _, second = await two_segments(tmp_path)
    store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    await store.journal.load()
    await store.journal.open_segment(Snapshot(2, b"a third"))
    await store.aclose()
    second.unlink()
    with pytest.raises(StoreFailed, match=r"00000001\.log is missing.*neither audited nor backed up"):
        await history(tmp_path)


async def test_restored_journal_goes_on_without_a_segment_that_it_names(tmp_path: Path) -> None:
    _, newest = await two_segments(tmp_path)
    newest.unlink()
    store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    loaded = await store.journal.load(is_restored=True)
    assert loaded is not None
    await store.journal.append(JournalRecord(2, b"another two, longer than the mark that it replaces"))
    await store.journal.open_segment(Snapshot(2, b"once more"))
    await store.aclose()
    assert await history(tmp_path) == [[1, 2], []]


async def test_mark_that_a_crash_took_is_written_by_the_next_start(tmp_path: Path) -> None:
    for kept in (0, 5):  # nothing of the mark, and a torn one
        run_dir = tmp_path / str(kept)
        store = await begun(run_dir)
        await store.journal.append(JournalRecord(1, b"one"))
        first = run_dir / "journal" / "00000000.log"
        end = first.stat().st_size
        await store.journal.open_segment(Snapshot(1, b"again"))
        await store.aclose()
        os.truncate(first, end + kept)
        assert await history(run_dir) == [[1], []]
        store = await RunDirectory.open(run_dir, MAX_BLOB_BYTES)
        await store.journal.load()
        await store.journal.append(JournalRecord(2, b"two"))
        await store.aclose()
        assert await history(run_dir) == [[1], [2]]
        (run_dir / "journal" / "00000001.log").unlink()
        with pytest.raises(StoreFailed, match="is missing"):
            await history(run_dir)


async def test_segment_cut_between_two_records_is_noticed_once_another_follows(tmp_path: Path) -> None:
    first, _ = await two_segments(tmp_path)
    os.truncate(first, first.stat().st_size - 20 - 8)  # without its mark
    with pytest.raises(StoreFailed, match="does not end with the name"):
        await history(tmp_path)


async def test_mark_that_cannot_be_written_leaves_no_segment_behind(tmp_path: Path) -> None:
    failing = False

    def sync(descriptor: int) -> None:
        nonlocal failing
        if failing and os.fstat(descriptor).st_ino == first.stat().st_ino:
            failing = False
            raise OSError(28, "No space left on device")
        os.fsync(descriptor)

    store = await begun(tmp_path, Disk(sync=sync))
    first = tmp_path / "journal" / "00000000.log"
    await store.journal.append(JournalRecord(1, b"one"))
    failing = True
    with pytest.raises(StoreFailed, match="No space"):
        await store.journal.open_segment(Snapshot(1, b"again"))
    await store.aclose()
    assert await history(tmp_path) == [[1]]


async def test_damaged_last_record_is_told_at_each_start_until_another_is_kept(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    await store.journal.append(JournalRecord(1, b"one" * 100))
    await store.aclose()
    path = tmp_path / "journal" / "00000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
        await store.journal.load()
        assert (store.journal.torn_bytes, store.journal.damaged_bytes) == (0, 20 + 300)
        await store.aclose()
    store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    await store.journal.load()
    await store.journal.append(JournalRecord(1, b"another"))
    assert store.journal.size_bytes == path.stat().st_size
    await store.aclose()
    assert await history(tmp_path) == [[1]]


def open_to_others(folder: Path) -> list[Path]:
    """Return what others than the owner may read or enter, the folder included."""
    return [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


async def test_run_directory_is_private_also_if_it_was_not(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    await two_segments(run_dir)
    await DirectoryKeys(run_dir).create_private_key()
    assert open_to_others(run_dir) == []
    for path in (run_dir, *run_dir.rglob("*")):
        path.chmod(0o755)
    store = await RunDirectory.open(run_dir, MAX_BLOB_BYTES)
    await store.journal.load()
    await store.save_state_file("text")
    await store.blobs.receive(sha256_hex(b"a result"), 8, pieces(b"a result"))
    assert open_to_others(run_dir) == []
    await store.aclose()


async def test_run_directory_in_a_folder_of_other_things_leaves_those_alone(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir(0o755)
    page = tmp_path / "pages" / "index.html"
    page.touch(0o644)
    await two_segments(tmp_path)
    await (await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)).aclose()
    assert page.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o755
    assert open_to_others(tmp_path / "journal") == []


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_run_directory_read_meanwhile_leaves_a_torn_record_where_it_is(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    path = tmp_path / "journal" / "00000000.log"
    torn = path.read_bytes() + b"torn"
    path.write_bytes(torn)
    reader = RunDirectoryReader(tmp_path)
    assert [segment.records async for segment in reader.journal.history()] == [()]
    assert reader.journal.torn_bytes == 4
    assert path.read_bytes() == torn
    await store.aclose()


async def test_run_directory_opened_twice_refuses_the_second_and_names_the_owner(tmp_path: Path) -> None:
    store = await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    with pytest.raises(StoreFailed, match=str(os.getpid())):
        await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)
    await store.aclose()
    await (await RunDirectory.open(tmp_path, MAX_BLOB_BYTES)).aclose()


async def test_run_directory_that_is_new_is_durable_with_every_folder_above_it(tmp_path: Path) -> None:
    recording, run_dir = RecordingDisk(), tmp_path / "runs" / "one"
    store = await begun(run_dir, recording.disk)
    journal = run_dir / "journal"
    assert recording.lacks(tmp_path, tmp_path / "runs", run_dir, journal, journal / "00000000.log") == []
    await store.aclose()


async def test_blob_that_is_kept_is_durable_with_every_folder_above_it(tmp_path: Path) -> None:
    recording = RecordingDisk()
    blobs = await DirectoryBlobs.open(tmp_path, 1000, recording.disk)

    digest = sha256_hex(b"a result")
    await blobs.receive(digest, 8, pieces(b"a result"))
    folder = tmp_path / "blobs"
    assert recording.lacks(tmp_path, folder, folder / digest[:2], folder / digest[:2] / digest) == []


async def test_run_directory_that_is_closed_keeps_nothing_more(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    await store.aclose()
    with pytest.raises(StoreFailed, match="closed"):
        await store.journal.append(JournalRecord(1, b"one"))


async def test_key_is_readable_by_its_owner_alone_and_checked(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path)
    await keys.create_private_key()
    path = tmp_path / "keys" / "coordinator.key"
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"short")
    with pytest.raises(StoreFailed, match=r"it is neither.*--new-coordinator-key"):
        await keys.private_key()


@pytest.mark.parametrize("kept", ["", "ab", "junk", "g" * 64, "\u00e9" * 32])
async def test_admin_file_that_holds_something_else_is_named(tmp_path: Path, kept: str) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "admin-token.sha256").write_text(kept)
    with pytest.raises(StoreFailed, match=r"admin-token.*64 hexadecimal digits.*--new-admin-token"):
        await DirectoryKeys(tmp_path).admin_token_sha256()


APPEND_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from epochal.coordinator.store.directory.run_directory import RunDirectory
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot

async def main():
    store = await RunDirectory.open(Path(sys.argv[1]), 0)
    await store.journal.open_segment(Snapshot(0, b"start"))
    for sequence in range(1, 100_000):
        await store.journal.append(JournalRecord(sequence, b"x" * 500))
        print(sequence, flush=True)
        if sequence % 50 == 0:
            await store.journal.open_segment(Snapshot(sequence, b"again"))

asyncio.run(main())
"""


def test_run_directory_of_a_killed_process_holds_every_acknowledged_record(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", APPEND_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = 0
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged >= 137:
                process.send_signal(signal.SIGKILL)
                break
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
    assert asyncio.run(last_sequence(tmp_path)) >= acknowledged


async def last_sequence(run_dir: Path) -> int:
    store = await RunDirectory.open(run_dir, MAX_BLOB_BYTES)
    loaded = await store.journal.load()
    await store.aclose()
    assert loaded is not None
    return loaded.records[-1].sequence if loaded.records else loaded.snapshot.sequence
