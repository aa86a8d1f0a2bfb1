"""Backups: a consistent copy of a run while it goes on.

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
from epochal.coordinator.proof.kept_blobs import wrong_content
from epochal.coordinator.store.files.backup_folder import BackupFolder
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.sql.copying import copy_rows
from epochal.coordinator.store.sql.notes import BACKUP, KEY_LOST, OBJECT_STORE, OF_A_PLACE, Keys, Notes
from epochal.coordinator.store.sql.sqlite import SqliteDatabase
from epochal.coordinator.store.store import StoreReader
from epochal.runtime.long_work import BYTES, counted_pieces, long_work
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal
from epochal.state.text.amounts import counted

MAX_COPIES = 5
"""Number of times that a copy begins because the coordinator deleted blobs meanwhile."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The contents of a backup.

    Attributes:
        run_id: the run.
        made_at: when the copy was begun, in ISO 8601.
        step: the step that the run had reached.
        journal_records: number of the last journal record that was copied.
        blobs: number of blobs that the run relies on.
        blob_bytes: their size.
    """

    run_id: str
    made_at: str
    step: int
    journal_records: int
    blobs: int
    blob_bytes: int


Progress = Callable[[str], None]
"""Receives a line about what a copy does next."""


async def back_up(url: str, to: Path, progress: Progress) -> BackupReport:
    """Copy the run in a store into a new folder, which appears only when it is complete.

    Args:
        url: the store; a coordinator may be serving it.
        to: the new folder.
        progress: called with what is being copied.

    Raises:
        InvalidInput: there is no run, or the folder exists.
        StoreFailed: the run cannot be read or the copy not written, or the run is damaged or changes too fast.
    """
    store = open_store_reader(url)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    async with BackupFolder.making(to) as folder:
        for _ in range(MAX_COPIES):
            async with store.place.copying():
                progress("copying the journal")
                copy = await copy_database(store, folder)
                found = await last_of(copy)
                kept = blobs_kept(found.run)
                progress(f"copying {counted(len(kept), 'blob')}, {sum(blob.size_bytes for blob in kept):,} bytes")
                swept = await _copy_blobs(store, copy, folder, kept)
            if swept is None:
                break
        else:
            raise StoreFailed(f"{store.name} cannot be copied: {swept}")
        for sha256 in await folder.blobs.held() - {blob.sha256 for blob in kept}:
            await folder.blobs.delete(sha256)
        await check_key(copy.keys, found.run, store.name)
        await _note(folder, copy.run_id, made_at)
        await folder.finish(state_file_text(found.run))
    size = sum(blob.size_bytes for blob in kept)
    run_id, step = found.run.state_file.run_id, found.run.progress.step
    return BackupReport(run_id, made_at, step, found.sequence, len(kept), size)


async def copy_database(store: StoreReader, folder: BackupFolder) -> StoreReader:
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


async def last_of(store: StoreReader) -> Replayed:
    """Return the run after the last record of a journal. Raise `StoreFailed` if there is none."""
    last: Segment | None = None
    async for segment in store.journal.history(await store.journal.newest_segment()):
        last = segment
    if last is None:
        raise StoreFailed(f"{store.name} holds no journal")
    return replay(last)


async def _copy_blobs(
    store: StoreReader, copy: StoreReader, folder: BackupFolder, kept: tuple[KeptBlob, ...]
) -> str | None:
    """Copy these blobs, except those that the copied database holds; return which one is missing, or None."""
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


async def check_key(keys: Keys, run: Run, name: str) -> bytes:
    """Return the key of a run's coordinator. Raise `StoreFailed` unless it is the run's."""
    private_key = await keys.private_key()
    if private_key is None or SigningKey(private_key).public_key_hex != run.identity.coordinator_key:
        raise StoreFailed(f"{name} does not hold the key of its run's coordinator; {KEY_LOST}")
    return private_key


async def _note(folder: BackupFolder, run_id: str, made_at: str) -> None:
    """Note in a copied database that it is a backup, whose blobs are all there."""
    copy = SqliteDatabase(folder.database, str(folder.folder), writes=True)
    try:
        notes = Notes(copy, run_id)
        for name in (*OF_A_PLACE, OBJECT_STORE):
            await notes.delete(name)
        await notes.write(BACKUP, made_at.encode())
    finally:
        await copy.aclose()
