"""Backups: a consistent copy of a run while it goes on, and reading one back.

The database is copied first, up to some last record. The run after that record says which blobs it relies on; they are
there while the copy holds back the coordinator's sweeps. A coordinator holds its sweeps back for a bounded time only:
if it deletes a blob nevertheless, the copy begins again with the newer journal, and keeps what it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Replayed, replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import KeptBlob, blobs_kept, state_file_text
from epochal.coordinator.proof.audit import audit
from epochal.coordinator.proof.kept_blobs import wrong_content
from epochal.coordinator.store.files.backup_folder import BackupFolder
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator.store.keys import KEY_LOST, CoordinatorKeyReader
from epochal.coordinator.store.open import open_store_reader, run_directory_of
from epochal.coordinator.store.sql.copying import copy_rows
from epochal.coordinator.store.sql.notes import BACKUP, OBJECT_STORE, OF_A_PLACE, Notes
from epochal.coordinator.store.sql.sqlite import SqliteDatabase
from epochal.coordinator.store.sql.store import SqlReader
from epochal.runtime.long_work import BYTES, counted_pieces, long_work
from epochal.state.errors import InvalidDocument, InvalidInput, Refused, StoreFailed
from epochal.state.refusals import Refusal
from epochal.state.wire import canonical_json, parse_document

MAX_COPIES = 5
"""Number of times that a copy begins because the coordinator deleted blobs meanwhile."""
NO_BACKUP = (
    "is not a backup. Once a coordinator has started from a backup with --restored, it is a run directory, which "
    "`epochal audit` checks"
)


@dataclass(frozen=True, slots=True)
class BackupNote:
    """The contents of a backup.

    Attributes:
        sequence: number of the last journal record that was copied.
        step: the step that the run had reached.
        made_at: when the copy was begun, in ISO 8601.
        blobs: number of blobs that the run relies on.
        blob_bytes: their size.
    """

    run_id: str
    sequence: int
    step: int
    made_at: str
    blobs: int
    blob_bytes: int


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The contents of a backup. `problems` describes what is wrong with it."""

    run_id: str
    made_at: str
    step: int
    journal_records: int
    blobs: int
    blob_bytes: int
    problems: tuple[str, ...] = ()


Progress = Callable[[str], None]
"""Receives a line about what a copy does next."""


async def back_up(url: str, to: Path, progress: Progress) -> BackupReport:
    """Copy the run in a store into a new folder, which appears only when it is complete.

    Args:
        url: the store; a coordinator may be serving it.
        to: the new folder.
        progress: told what is being copied.

    Raises:
        InvalidInput: there is no run, or the folder exists.
        StoreFailed: the run cannot be read or the copy not written, or the run is damaged or changes too fast.
    """
    store = open_store_reader(url)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    async with BackupFolder.making(to) as folder:
        for _ in range(MAX_COPIES):
            async with store.copying():
                progress("copying the journal")
                copy = await copy_database(store, folder)
                found = await last_of(copy)
                kept = blobs_kept(found.run)
                progress(f"copying {len(kept)} blobs, {sum(blob.size_bytes for blob in kept):,} bytes")
                swept = await _copy_blobs(store, copy, folder, kept)
            if swept is None:
                break
        else:
            raise StoreFailed(f"{store.name} cannot be copied: {swept}")
        for sha256 in await folder.blobs.held() - {blob.sha256 for blob in kept}:
            await folder.blobs.delete(sha256)
        await check_key(copy.keys, found.run, store.name)
        size = sum(blob.size_bytes for blob in kept)
        run_id, step = found.run.state_file.run_id, found.run.progress.step
        note = BackupNote(run_id, found.sequence, step, made_at, len(kept), size)
        await _note(folder, copy.run_id, note)
        await folder.finish(state_file_text(found.run))
    return BackupReport(run_id, made_at, step, found.sequence, len(kept), size)


async def copy_database(store: SqlReader, folder: BackupFolder) -> SqlReader:
    """Copy the database of a run into a new folder, and return what reads it there."""
    folder.database.unlink(missing_ok=True)
    if isinstance(store.database, SqliteDatabase):
        await store.database.copy_to(folder.database)
    else:
        copy = SqliteDatabase(folder.database, str(folder.folder), writes=True)
        try:
            await copy.make_tables()
            with long_work("copying the journal", None, "rows") as work:
                await copy_rows(store.database, copy, store.run_id, {}, work)
        finally:
            await copy.aclose()
    return open_folder_reader(folder.folder)


async def last_of(store: SqlReader) -> Replayed:
    """Return the run after the last record of a journal. Raise `StoreFailed` if there is none."""
    last: Segment | None = None
    async for segment in store.journal.history(await store.journal.newest_segment()):
        last = segment
    if last is None:
        raise StoreFailed(f"{store.name} holds no journal")
    return replay(last)


async def _copy_blobs(
    store: SqlReader, copy: SqlReader, folder: BackupFolder, kept: tuple[KeptBlob, ...]
) -> str | None:
    """Copy these blobs, except those that the copied database holds; return which one is missing, or None.

    Raises:
        StoreFailed: one is damaged.
    """
    with long_work("copying blobs", sum(blob.size_bytes for blob in kept), BYTES) as work:
        for blob in kept:
            end_bytes = work.done + blob.size_bytes
            pieces = counted_pieces(store.blobs.stream(blob.sha256, 0, blob.size_bytes), work)
            try:
                if await copy.own_blobs.size(blob.sha256) is None:
                    await folder.blobs.receive(blob.sha256, blob.size_bytes, pieces)
            except Refused as error:
                if error.kind is Refusal.NOT_FOUND:
                    return f"blob {blob.sha256} ({blob.purpose}) is missing"
                raise StoreFailed(await wrong_content(blob, store.blobs) or str(error)) from error
            if (wrong := await wrong_content(blob, copy.own_blobs)) is not None:
                raise StoreFailed(wrong)
            work.reach(end_bytes)  # an earlier attempt may have copied it
    return None


async def check_key(keys: CoordinatorKeyReader, run: Run, name: str) -> bytes:
    """Return the key of a run's coordinator. Raise `StoreFailed` unless it is the run's."""
    private_key = await keys.private_key()
    if private_key is None or SigningKey(private_key).public_key_hex != run.identity.coordinator_key:
        raise StoreFailed(f"{name} does not hold the key of its run's coordinator; {KEY_LOST}")
    return private_key


async def _note(folder: BackupFolder, run_id: str, note: BackupNote) -> None:
    """Note in a copied database that it is a backup, whose blobs are all there."""
    copy = SqliteDatabase(folder.database, str(folder.folder), writes=True)
    try:
        notes = Notes(copy, run_id)
        for name in (*OF_A_PLACE, OBJECT_STORE):
            await notes.delete(name)
        await notes.write(BACKUP, canonical_json(note))
    finally:
        await copy.aclose()


async def verify_backup(folder: Path) -> BackupReport:
    """Read a backup back completely: every record of the journal, the key, every note, every blob.

    Raises:
        InvalidInput: the folder is no backup, or one that was not finished.
        StoreFailed: it cannot be read.
    """
    store = open_folder_reader(run_directory_of(str(folder)))
    data = await store.notes.read(BACKUP)
    if data is None:
        raise InvalidInput(f"{folder} {NO_BACKUP}")
    try:
        note: BackupNote = parse_document(BackupNote, data)
    except InvalidDocument as error:
        raise StoreFailed(f"{folder}: its note is damaged: {error}") from error
    try:
        problems = list((await audit(store, with_parameters=False)).problems)
        sequence = (await last_of(store)).sequence
        if sequence != note.sequence:
            problems.append(f"its journal ends with record {sequence}, not {note.sequence}")
    except StoreFailed as error:
        problems = [error.message]
    return BackupReport(
        note.run_id, note.made_at, note.step, note.sequence, note.blobs, note.blob_bytes, tuple(problems)
    )
