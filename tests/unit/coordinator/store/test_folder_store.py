"""A run in a folder: its lock, and what is private; what SIGKILL, a power failure and flipped bits leave."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.proof.kept_blobs import damaged_records
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.coordinator.store.files.opening import open_folder_reader, open_folder_store
from epochal.coordinator.store.sql.database import Statement
from epochal.coordinator.store.sql.history import StoredProof
from epochal.coordinator.store.store import Store, StoreReader
from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.state.errors import StoreFailed
from epochal.state.wire import sha256_hex
from tests.support.data.recording_disk import RecordingDisk
from tests.support.data.stored_blobs import one_piece
from tests.support.data.stored_rows import execute
from tests.support.thinned import thinned

MAX_BLOB_BYTES = 1_000
WAL, SHM = f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"
SMALL = b"a small result"
FULL_SYNC = 2
"""SQLite's number of `synchronous=FULL`."""


async def begun(run_dir: Path, disk: Disk = REAL_DISK) -> Store:
    store = await open_folder_store(run_dir, MAX_BLOB_BYTES, disk=disk)
    await store.journal.open_segment(Snapshot(0, b"start"))
    return store


async def play(store: Store) -> AsyncIterator[str]:
    """Keep things of every kind; yield what a store says of itself after each."""
    journal = store.journal
    await store.keys.create_private_key()
    yield await told(store)
    await journal.open_segment(Snapshot(0, b"start"))
    yield await told(store)
    for sequence in range(1, 6):
        small = SMALL + b"%d" % sequence
        await journal.append(JournalRecord(sequence, b"record" * 300, sequence, {sha256_hex(small): small}))
        yield await told(store)
        await journal.open_segment(Snapshot(sequence, b"snapshot" * 200))
        yield await told(store)
    await store.recorded_blobs.drop(sorted(await store.recorded_blobs.held())[:2], 5)
    yield await told(store)
    await journal.keep_proof(StoredProof(2, b"proof"))
    yield await told(store)
    await journal.drop_covered(2)
    yield await told(store)


async def told(store: Store | StoreReader) -> str:
    """Return all that a store holds."""
    journal = store.journal
    segments = [segment async for segment in journal.history()]
    blobs = sorted((await store.recorded_blobs.read(await store.recorded_blobs.held())).items())
    proofs, key = await journal.proofs(), await store.keys.private_key()
    return repr((segments, blobs, proofs, key, await journal.problems()))


async def told_by(run_dir: Path) -> str:
    store = await open_folder_store(run_dir, MAX_BLOB_BYTES)
    try:
        return await told(store)
    finally:
        await store.aclose()


# The folder


async def test_reader_is_told_where_a_run_is_served_until_it_is_not(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    reader = open_folder_reader(tmp_path)
    assert await reader.place.served_at() is None
    store.place.note_address("http://127.0.0.1:8000")
    assert await reader.place.served_at() == await store.place.served_at() == "http://127.0.0.1:8000"
    await store.aclose()
    assert await reader.place.served_at() is None


@pytest.mark.parametrize("lock", [b"%d\nhttp://127.0.0.1:8000\n", b"nobody\nhttp://127.0.0.1:8000\n", b"\xff\n"])
async def test_address_of_a_coordinator_that_was_killed_is_not_told(tmp_path: Path, lock: bytes) -> None:
    await (await begun(tmp_path)).aclose()
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    (tmp_path / "lock").write_bytes(lock.replace(b"%d", b"%d" % ended.pid))
    assert await open_folder_reader(tmp_path).place.served_at() is None


async def test_folder_opened_twice_refuses_the_second_and_names_the_owner(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    with pytest.raises(StoreFailed, match=rf"another coordinator already \(process {os.getpid()}\)"):
        await open_folder_store(tmp_path, MAX_BLOB_BYTES)
    await store.aclose()
    await (await open_folder_store(tmp_path, MAX_BLOB_BYTES)).aclose()


async def test_folder_that_is_closed_keeps_nothing_more(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    await store.aclose()
    with pytest.raises(StoreFailed, match="closed"):
        await store.journal.append(JournalRecord(1, b"one"))


def open_to_others(folder: Path) -> list[Path]:
    """Return what others than the owner may read or enter, the folder included."""
    return [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


async def test_folder_is_private_also_if_it_was_not(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    store = await begun(run_dir)
    await store.keys.create_private_key()
    assert open_to_others(run_dir) == []
    await store.aclose()
    for path in (run_dir, *run_dir.rglob("*")):
        path.chmod(0o755)
    store = await open_folder_store(run_dir, MAX_BLOB_BYTES)
    await store.place.save_state_file("text")
    await store.blobs.receive(sha256_hex(b"a result"), 8, one_piece(b"a result"))
    assert open_to_others(run_dir) == []
    await store.aclose()


async def test_folder_of_other_things_leaves_those_alone(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir(0o755)
    page = tmp_path / "pages" / "index.html"
    page.touch(0o644)
    await (await begun(tmp_path)).aclose()
    assert page.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o755


async def test_blob_that_is_kept_is_durable_with_every_folder_above_it(tmp_path: Path) -> None:
    recording = RecordingDisk()
    blobs = await DirectoryBlobs.open(tmp_path, 1000, recording.disk)
    digest = sha256_hex(b"a result")
    await blobs.receive(digest, 8, one_piece(b"a result"))
    folder = tmp_path / "blobs"
    assert recording.lacks(tmp_path, folder, folder / digest[:2], folder / digest[:2] / digest) == []


# SIGKILL and power failures


async def test_connection_that_appends_syncs_every_commit(tmp_path: Path) -> None:
    store = await begun(tmp_path)
    asked = [Statement(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
    assert await store.journal._database.transact(*asked) == [[("wal",)], [(FULL_SYNC,)]]
    await store.aclose()


KILLED_AT_EVERY_STATEMENT = """
import asyncio, sys
from pathlib import Path
from epochal.coordinator.store.files.opening import open_folder_store
from tests.support.drive.killed_statements import killed_at_each
from tests.unit.coordinator.store.test_folder_store import MAX_BLOB_BYTES, play

async def work(folder):
    store = await open_folder_store(folder, MAX_BLOB_BYTES)
    async for said in play(store):
        with (folder / "acknowledged").open("a") as file:
            file.write(said + "\\n")
    await store.aclose()

whole = Path(sys.argv[1])
whole.mkdir()
killed_at_each(whole, Path(sys.argv[2]), lambda folder: asyncio.run(work(folder)))
"""


@pytest.mark.nightly
def test_store_killed_at_any_statement_keeps_all_that_was_acknowledged(tmp_path: Path) -> None:
    to = tmp_path / "killed"
    program = (sys.executable, "-c", KILLED_AT_EVERY_STATEMENT, str(tmp_path / "whole"), str(to))
    subprocess.run(program, check=True)
    folders = sorted(to.iterdir())
    for folder in folders:
        acknowledged = folder / "acknowledged"
        lines = acknowledged.read_text().splitlines() if acknowledged.exists() else []
        found = asyncio.run(told_by(folder))
        assert not lines or count_of(found) >= count_of(lines[-1]), folder
        assert found.endswith("())"), "it finds nothing wrong with itself"
    assert len(folders) > 50


def count_of(said: str) -> tuple[int, int, bool]:
    """Return how far a run has come by what its store says: never less after something was acknowledged."""
    proved = "StoredProof" in said
    return said.count("JournalRecord(") + 2 * proved, said.count("Segment(") + 2 * proved, "history" in said


def copied(run_dir: Path, to: Path) -> Path:
    """Copy the files as a power failure would leave them now; the shared memory is lost."""
    to.mkdir()
    for name in (DATABASE_FILE, WAL):
        if (run_dir / name).exists():
            shutil.copy(run_dir / name, to / name)
    return to


async def test_power_failure_after_any_commit_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    store = await open_folder_store(run_dir, MAX_BLOB_BYTES)
    number = 0
    async for said in play(store):
        assert await told_by(copied(run_dir, tmp_path / str(number))) == said
        number += 1
    await store.aclose()
    assert number > 10


@thinned(("beside", "every"), [((-1, 1, 2000), 30_000), ((-1, 1, 30, 2000), 5000)], kept=1)
async def test_power_failure_within_a_write_leaves_a_committed_prefix(
    tmp_path: Path, beside: tuple[int, ...], every: int
) -> None:
    run_dir = tmp_path / "run"
    store = await open_folder_store(run_dir, MAX_BLOB_BYTES)
    committed, sizes = [await told(store)], [(run_dir / WAL).stat().st_size]
    async for said in play(store):
        committed.append(said)
        sizes.append((run_dir / WAL).stat().st_size)
    number, expected = 0, 0
    for size in sorted({*sizes, *(size + by for size in sizes for by in beside), *range(0, sizes[-1], every)}):
        if sizes[0] <= size <= sizes[-1]:
            torn = copied(run_dir, tmp_path / str(number))
            os.truncate(torn / WAL, size)
            expected = max(index for index, at in enumerate(sizes) if at <= size)
            assert await told_by(torn) == committed[expected], size
            number += 1
    await store.aclose()
    assert number > 20


@pytest.mark.nightly
async def test_power_failure_while_the_log_is_moved_into_the_database(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    store = await open_folder_store(run_dir, MAX_BLOB_BYTES)
    async for last in play(store):
        said = last
    before, log = (run_dir / DATABASE_FILE).read_bytes(), (run_dir / WAL).read_bytes()
    execute(run_dir, "PRAGMA wal_checkpoint(PASSIVE)")
    after = (run_dir / DATABASE_FILE).read_bytes()
    await store.aclose()
    assert len(after) > len(before)
    for number, written in enumerate(range(0, len(after), 4096 // 2)):  # half pages too
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / DATABASE_FILE).write_bytes(after[:written] + before[written:])
        (folder / WAL).write_bytes(log)
        assert await told_by(folder) == said, written


# Flipped bits


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run with things of every kind, in one file."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"

    async def make() -> None:
        store = await open_folder_store(run_dir, MAX_BLOB_BYTES)
        async for _ in play(store):
            pass
        await store.aclose()

    asyncio.run(make())
    return run_dir


def places(database: bytes) -> Iterator[int]:
    """Yield bytes in all parts of each page."""
    for page in range(0, len(database), 4096):
        yield from range(page + (100 if not page else 0), page + 40)
        yield from range(page + 40, page + 4096, 149)


ROWS = ("runs", "segments", "records", "proofs", "notes", "blobs")
NAMED = ("damaged", "lacks", "malformed", "holds no run", "page", "row", "no such", "version", "bytes")
"""Words of messages that name what is wrong: a record, a note, a page, a table."""
UNTOLD = "changed_s"
"""The time that `epochal runs` shows; nothing depends on it."""


def rows_in(run_dir: Path) -> str:
    """Return every value of every table that anything depends on."""
    found = []
    with closing(sqlite3.connect(run_dir / DATABASE_FILE)) as connection:
        connection.row_factory = sqlite3.Row
        for table in ROWS:
            for row in connection.execute(f"SELECT * FROM epochal_{table} ORDER BY 1, 2"):
                named = zip(row.keys(), row, strict=True)
                found.append(repr([(key.lower(), value) for key, value in named if key != UNTOLD]))
    return "\n".join(found)


@thinned("each", [23, 1], kept=1)
async def test_flipped_bit_that_changes_anything_is_found_and_named(whole: Path, tmp_path: Path, each: int) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    path, expected = folder / DATABASE_FILE, rows_in(whole)
    original = path.read_bytes()
    tried, found = [*places(original)][::each], 0
    for place in tried:
        changed = bytearray(original)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        problem = await problem_of(folder)
        if problem:
            found += 1
            assert any(name in problem.lower() for name in NAMED), problem
        else:
            assert rows_in(folder) == expected, place
    assert found > len(tried) / 10


async def test_flipped_bit_in_the_log_is_named_where_commits_are_lost_by_it(tmp_path: Path) -> None:
    store = await open_folder_store(tmp_path / "run", MAX_BLOB_BYTES)
    sizes = [(tmp_path / "run" / WAL).stat().st_size async for _ in play(store)]
    folder = copied(tmp_path / "run", tmp_path / "killed")
    await store.aclose()
    kept = {name: (folder / name).read_bytes() for name in (DATABASE_FILE, WAL)}
    for place in (*range(0, 32, 3), *range(32, sizes[-3], 16_411)):
        changed = bytearray(kept[WAL])
        changed[place] ^= 1 << place % 8
        for name, content in (kept | {WAL: changed}).items():
            (folder / name).write_bytes(content)
        (folder / SHM).unlink(missing_ok=True)
        assert WAL in await problem_of(folder), place
        with pytest.raises(StoreFailed, match=f"{WAL}: .*restore a backup"):
            await told_by(folder)


async def problem_of(run_dir: Path) -> str:
    """Return what reading all of a run finds wrong, as an audit does; "" if nothing is."""
    try:
        reader = open_folder_reader(run_dir)
        async for _ in reader.journal.history():
            pass
        await reader.journal.proofs()
        damaged = [problem async for problem in damaged_records(reader.recorded_blobs)]
        return "; ".join([*damaged, *await reader.journal.problems()])
    except StoreFailed as error:
        return error.message
    except Exception as error:
        return f"damaged: {error}"
