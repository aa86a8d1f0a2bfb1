"""The journal's bytes: what a crash may leave, and what is damage."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.store.directory.blobs import DirectoryBlobs
from coordinator.store.directory.journal import RunDirectory
from coordinator.store.directory.segments import MAGIC, encode_entry, parse_segment
from coordinator.store.protocol import JournalRecord, Snapshot
from runtime.durable_files import Disk
from state.errors import StoreConflict, StoreFailed
from state.wire import sha256_hex

BODIES = [b"snapshot", b"first", b"second", b"third"]


def segment(bodies: list[bytes] = BODIES) -> bytes:
    return MAGIC + b"".join(encode_entry(number, body) for number, body in enumerate(bodies))


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_segment_parses_to_what_was_encoded(bodies: list[bytes]) -> None:
    parsed = parse_segment(segment(bodies), "x", is_last=False)
    assert [body for _, body in parsed.entries] == bodies
    assert parsed.torn_bytes == 0


def test_segment_cut_anywhere_in_its_last_record_loses_only_that_record() -> None:
    whole = segment()
    start = len(segment(BODIES[:-1]))
    for length in range(start, len(whole)):
        parsed = parse_segment(whole[:length], "x", is_last=True)
        assert [body for _, body in parsed.entries] == BODIES[:-1]
        assert parsed.kept_bytes == start
        assert parsed.torn_bytes == length - start
        if length > start:
            with pytest.raises(StoreFailed):
                parse_segment(whole[:length], "x", is_last=False)


def test_segment_with_any_byte_flipped_is_damage_or_a_torn_last_record() -> None:
    whole = segment()
    last = len(segment(BODIES[:-1]))
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x40
        if position >= last:
            assert len(parse_segment(bytes(flipped), "x", is_last=True).entries) == len(BODIES) - 1
            continue
        try:
            entries = parse_segment(bytes(flipped), "x", is_last=True).entries
        except StoreFailed:
            continue
        raise AssertionError(f"byte {position} flipped unnoticed: {entries}")


def test_segment_with_a_record_missing_in_the_middle_is_damage() -> None:
    missing = MAGIC + b"".join(encode_entry(number, BODIES[number]) for number in (0, 1, 3))
    with pytest.raises(StoreFailed):
        parse_segment(missing, "x", is_last=True)


async def test_run_directory_cuts_a_torn_record_and_appends_after_it(tmp_path: Path) -> None:
    store = RunDirectory.open(tmp_path)
    await store.open_segment(Snapshot(0, b"start"))
    await store.append(JournalRecord(1, b"one"))
    await store.aclose()
    path = tmp_path / "journal" / "00000000.log"
    path.write_bytes(path.read_bytes() + b"torn")
    again = RunDirectory.open(tmp_path)
    loaded = await again.load()
    assert loaded is not None
    assert loaded.torn_bytes == 4
    await again.append(JournalRecord(2, b"two"))
    await again.aclose()
    (found,) = [item async for item in RunDirectory.read_history(tmp_path)]
    assert [record.body for record in found.records] == [b"one", b"two"]


async def test_run_directory_opened_twice_refuses_the_second_and_names_the_owner(tmp_path: Path) -> None:
    store = RunDirectory.open(tmp_path)
    with pytest.raises(StoreConflict, match=str(os.getpid())):
        RunDirectory.open(tmp_path)
    await store.aclose()
    await RunDirectory.open(tmp_path).aclose()


class _Syncs:
    """A disk that remembers what was made durable."""

    def __init__(self) -> None:
        self._synced: set[tuple[int, int]] = set()
        self.disk = Disk(sync=self._sync)

    def _sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._synced.add((found.st_dev, found.st_ino))
        os.fsync(descriptor)

    def lacks(self, *paths: Path) -> list[Path]:
        """Those of these files and folders that a loss of power may take."""
        return [path for path in paths if (path.stat().st_dev, path.stat().st_ino) not in self._synced]


async def test_run_directory_that_is_new_is_durable_with_every_folder_above_it(tmp_path: Path) -> None:
    syncs, run_dir = _Syncs(), tmp_path / "runs" / "one"
    store = RunDirectory.open(run_dir, syncs.disk)
    await store.open_segment(Snapshot(0, b"start"))
    journal = run_dir / "journal"
    assert syncs.lacks(tmp_path, tmp_path / "runs", run_dir, journal, journal / "00000000.log") == []
    await store.aclose()


async def test_blob_that_is_kept_is_durable_with_every_folder_above_it(tmp_path: Path) -> None:
    syncs = _Syncs()
    blobs = await DirectoryBlobs.open(tmp_path, 1000, syncs.disk)

    async def body() -> AsyncIterator[bytes]:
        yield b"a result"

    digest = sha256_hex(b"a result")
    await blobs.receive(digest, 8, body())
    folder = tmp_path / "blobs"
    assert syncs.lacks(tmp_path, folder, folder / digest[:2], folder / digest[:2] / digest) == []


@pytest.mark.parametrize("failing", ["write", "sync"])
async def test_run_directory_after_a_failed_write_keeps_nothing_more(tmp_path: Path, failing: str) -> None:
    broken = False

    def write(file: BinaryIO, data: bytes) -> object:
        if broken and failing == "write":
            raise OSError(28, "No space left on device")
        return file.write(data)

    def sync(descriptor: int) -> None:
        if broken and failing == "sync":
            raise OSError(5, "Input/output error")
        os.fsync(descriptor)

    store = RunDirectory.open(tmp_path, Disk(write, sync))
    await store.open_segment(Snapshot(0, b"start"))
    broken = True
    with pytest.raises(StoreFailed, match=r"No space|Input/output"):
        await store.append(JournalRecord(1, b"one"))
    broken = False
    with pytest.raises(StoreFailed):
        await store.append(JournalRecord(1, b"one"))
    await store.aclose()


APPEND_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from coordinator.store.directory.journal import RunDirectory
from coordinator.store.protocol import JournalRecord, Snapshot

async def main():
    store = RunDirectory.open(Path(sys.argv[1]))
    await store.open_segment(Snapshot(0, b"start"))
    for sequence in range(1, 100_000):
        await store.append(JournalRecord(sequence, b"x" * 500))
        print(sequence, flush=True)
        if sequence % 50 == 0:
            await store.open_segment(Snapshot(sequence, b"again"))

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
    store = RunDirectory.open(run_dir)
    loaded = await store.load()
    await store.aclose()
    assert loaded is not None
    return loaded.records[-1].sequence if loaded.records else loaded.snapshot.sequence
