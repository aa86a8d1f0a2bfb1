"""A backup: complete or not there, read back completely, and made while the run goes on."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.run import new_run
from epochal.coordinator.proof.backup import MAX_COPIES, back_up
from epochal.coordinator.run.opening import ServiceOptions, open_run, signing_key_of
from epochal.coordinator.run.run_journal import RunJournal
from epochal.coordinator.store.files.backup_folder import BackupFolder
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.coordinator.store.open import open_store, open_store_reader
from epochal.runtime.clock import SystemClock
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidInput, StoreFailed
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.database_store import keep_private_key
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import one_piece
from tests.support.data.stored_rows import execute, flip
from tests.support.drive.journaled_run import problems_of

MAX_BLOB_BYTES = 1_000_000
BLOBS = (b"the older checkpoint", b"the newer checkpoint")


async def kept_run(run_dir: Path) -> Path:
    """Keep a run with two checkpoints; return its run directory."""
    store = await open_store(str(run_dir), MAX_BLOB_BYTES)
    key = await signing_key_of(store, anew=False)
    refs = tuple(CheckpointRef(step, sha256_hex(data), len(data), Sha256("ab" * 32)) for step, data in enumerate(BLOBS))
    before = new_run(state_file(), lineage="ab" * 16, coordinator_key=key.public_key_hex, now_s=1.0)
    run = before.with_parts(replace(before.models, checkpoints=refs))
    await RunJournal.begin(store.journal, run)
    for data in BLOBS:
        await store.blobs.receive(sha256_hex(data), len(data), one_piece(data))
    await store.keys.keep_admin_token_sha256(bytes(32))
    await store.aclose()
    return run_dir


def blob_file(folder: Path, data: bytes) -> Path:
    sha256 = sha256_hex(data)
    return folder / "blobs" / sha256[:2] / sha256


def say_nothing(_: str) -> None: ...


async def test_backup_holds_the_whole_run_and_proves_to_be_whole(tmp_path: Path) -> None:
    run_dir, to = await kept_run(tmp_path / "run"), tmp_path / "backups" / "monday"
    made = await back_up(str(run_dir), to, say_nothing)
    assert (made.blobs, made.blob_bytes) == (2, sum(len(data) for data in BLOBS))
    assert await problems_of(to) == ()
    copy, original = open_store_reader(str(to)), open_store_reader(str(run_dir))
    assert [found async for found in copy.journal.history()] == [found async for found in original.journal.history()]
    assert await copy.keys.private_key() == await original.keys.private_key()
    assert await copy.keys.admin_token_sha256() == bytes(32)
    assert [path for path in (to, *to.rglob("*")) if path.stat().st_mode & 0o077] == []
    assert not to.with_name("monday.partial").exists()


async def test_backup_is_started_from_with_restored_alone_and_is_none_afterwards(tmp_path: Path) -> None:
    to = tmp_path / "backup"
    await back_up(str(await kept_run(tmp_path / "run")), to, say_nothing)
    store = await open_store(str(to), MAX_BLOB_BYTES)
    key, history = await signing_key_of(store, anew=False), RunHistory(store.journal, InlineWorker())
    options = ServiceOptions(store, SystemClock(), key.public_key_hex, history)
    with pytest.raises(InvalidInput, match="is a backup; start from it with --restored"):
        await open_run(options, state_file(), is_restored=False)
    await open_run(options, state_file(), is_restored=True)
    assert store.is_backup
    await store.note_served()
    await store.note_served()
    assert not store.is_backup
    await store.aclose()


def flip_file(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def void(_: object) -> None: ...


HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "journal": (lambda to: flip(to, "epochal_segments", "snapshot"), "the snapshot of segment 0 of run is damaged"),
    "no segment": (lambda to: void(execute(to, "DELETE FROM epochal_segments")), "lacks segment 0"),
    "blob": (lambda to: flip_file(blob_file(to, BLOBS[0])), "the checkpoint of step 0) is damaged"),
    "no blob": (lambda to: blob_file(to, BLOBS[1]).unlink(), "the checkpoint of step 1) is missing"),
    "key": (lambda to: flip(to, "epochal_notes", "value", "name = 'coordinator.key'"), "coordinator.key is damaged"),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_backup_that_has_changed_is_found_out(tmp_path: Path, harm: str) -> None:
    to = tmp_path / "backup"
    await back_up(str(await kept_run(tmp_path / "run")), to, say_nothing)
    change, said = HARMS[harm]
    change(to)
    problems = await problems_of(to)
    assert any(said in problem for problem in problems), problems


async def test_unfinished_backup_is_refused_and_made_again(tmp_path: Path) -> None:
    run_dir, to = await kept_run(tmp_path / "run"), tmp_path / "backup"
    partial = tmp_path / "backup.partial"
    partial.mkdir()
    shutil.copy(run_dir / DATABASE_FILE, partial)
    (partial / "incomplete-backup").touch()  # what a killed process leaves
    with pytest.raises(InvalidInput, match="a backup that was not finished"):
        await open_store(str(partial), 0)
    with pytest.raises(InvalidInput, match="a backup that was not finished"):
        open_store_reader(str(partial))
    await back_up(str(run_dir), to, say_nothing)
    assert await problems_of(to) == ()
    assert not partial.exists()


async def test_backup_into_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    run_dir = await kept_run(tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "file").touch()
    for name in ("full", "other"):
        with pytest.raises(InvalidInput, match="exists"):
            await back_up(str(run_dir), tmp_path / name, say_nothing)


async def test_two_backups_into_one_folder_at_once_are_refused(tmp_path: Path) -> None:
    run_dir, to = await kept_run(tmp_path / "run"), tmp_path / "backup"
    async with BackupFolder.making(to):
        with pytest.raises(StoreFailed, match="another process makes a backup"):
            await back_up(str(run_dir), to, say_nothing)
        assert to.with_name("backup.partial").exists()
    await back_up(str(run_dir), to, say_nothing)


async def test_copy_begins_again_if_a_blob_vanishes_meanwhile(tmp_path: Path) -> None:
    run_dir = await kept_run(tmp_path / "run")
    path, begun = blob_file(run_dir, BLOBS[0]), 0

    def vanish_once(line: str) -> None:
        nonlocal begun
        if "blobs" not in line:
            return
        begun += 1
        if begun == 1:
            path.unlink()
        else:
            path.write_bytes(BLOBS[0])

    await back_up(str(run_dir), tmp_path / "backup", vanish_once)
    assert begun == 2
    assert await problems_of(tmp_path / "backup") == ()


async def test_blob_that_stays_away_or_is_damaged_fails_the_backup_by_name(tmp_path: Path) -> None:
    run_dir = await kept_run(tmp_path / "run")
    begun: list[str] = []
    flip_file(blob_file(run_dir, BLOBS[0]))
    with pytest.raises(StoreFailed, match=r"the checkpoint of step 0\) is damaged"):
        await back_up(str(run_dir), tmp_path / "backup", begun.append)
    blob_file(run_dir, BLOBS[0]).unlink()
    begun.clear()
    with pytest.raises(StoreFailed, match=r"the checkpoint of step 0\) is missing"):
        await back_up(str(run_dir), tmp_path / "backup", begun.append)
    assert len(begun) == 2 * MAX_COPIES
    assert not (tmp_path / "backup.partial").exists()


async def test_backup_without_the_runs_key_is_not_made(tmp_path: Path) -> None:
    run_dir = await kept_run(tmp_path / "run")
    await keep_private_key(run_dir, bytes(range(32)))
    with pytest.raises(StoreFailed, match="does not hold the key"):
        await back_up(str(run_dir), tmp_path / "backup", say_nothing)
