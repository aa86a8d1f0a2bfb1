"""Backups: a consistent copy of a run while it goes on, and reading one back.

The journal is copied up to its last record. The run after that record says which blobs it relies on; they are there
while the copy holds back the coordinator's sweeps. A coordinator holds its sweeps back for a bounded time only: if it
deletes a blob nevertheless, the copy begins again with the newer journal, and keeps what it has.
"""

import hashlib
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
from epochal.coordinator.store.directory.backup_folder import BACKUP_FORMAT, BackupFolder, BackupNote, read_note
from epochal.coordinator.store.keys import KEY_LOST
from epochal.coordinator.store.open import StoreReader, open_store_reader
from epochal.runtime.long_work import BYTES, counted_pieces, long_work
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

MAX_COPIES = 5
"""Number of times that a copy begins because the coordinator deleted blobs meanwhile."""


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
                found = await copy_journal(store, folder)
                kept = blobs_kept(found.run)
                progress(f"copying {len(kept)} blobs, {sum(blob.size_bytes for blob in kept):,} bytes")
                swept = await _copy_blobs(store, folder, kept)
            if swept is None:
                break
        else:
            raise StoreFailed(f"{store.name} cannot be copied: {swept}")
        await folder.drop_blobs_except(frozenset(blob.sha256 for blob in kept))
        await _copy_keys(store, folder, found.run)
        await folder.keep_state_file(state_file_text(found.run))
        size = sum(blob.size_bytes for blob in kept)
        run_id, step = found.run.state_file.run_id, found.run.progress.step
        files = dict(folder.files)
        await folder.finish(
            BackupNote(BACKUP_FORMAT, run_id, found.sequence, step, made_at, len(kept), size, files),
        )
    return BackupReport(run_id, made_at, step, found.sequence, len(kept), size)


async def copy_journal(store: StoreReader, folder: BackupFolder) -> Replayed:
    """Copy every whole record, and the newest proof of those before; return the run after the last one."""
    last: Segment | None = None
    proof = max(await store.journal.proofs(), key=lambda proof: proof.segment_count, default=None)
    if proof is not None:
        await folder.keep_proof(proof)
    newest, first = await store.journal.newest_segment(), 0 if proof is None else proof.segment_count
    with long_work("copying the journal", None if newest is None else newest + 1 - first, "segments") as work:
        async for segment in store.journal.history(None if proof is None else first):
            if last is not None:
                await folder.keep_segment(last, segment.number)
            last = segment
            work.advance()
    if last is None:
        raise StoreFailed(f"{store.name} holds no journal")
    await folder.keep_segment(last, None)
    return replay(last)


async def _copy_blobs(store: StoreReader, folder: BackupFolder, kept: tuple[KeptBlob, ...]) -> str | None:
    """Copy these blobs; return which one is missing, or None.

    Raises:
        StoreFailed: one is damaged.
    """
    with long_work("copying blobs", sum(blob.size_bytes for blob in kept), BYTES) as work:
        for blob in kept:
            end_bytes = work.done + blob.size_bytes
            pieces = counted_pieces(store.blobs.stream(blob.sha256, 0, blob.size_bytes), work)
            try:
                await folder.keep_blob(blob.sha256, blob.size_bytes, pieces)
            except Refused as error:
                if error.kind is Refusal.NOT_FOUND:
                    return f"blob {blob.sha256} ({blob.purpose}) is missing"
                raise StoreFailed(await wrong_content(blob, store.blobs) or str(error)) from error
            work.reach(end_bytes)  # an earlier attempt may have copied it
    return None


async def _copy_keys(store: StoreReader, folder: BackupFolder, run: Run) -> None:
    private_key = await store.keys.private_key()
    if private_key is None or SigningKey(private_key).public_key_hex != run.identity.coordinator_key:
        raise StoreFailed(f"{store.name} does not hold the key of its run's coordinator; {KEY_LOST}")
    await folder.keep_keys(private_key, await store.keys.admin_token_sha256())


async def verify_backup(folder: Path) -> BackupReport:
    """Read a backup back completely: every file's digest, every record of the journal, the key, every blob.

    Raises:
        InvalidInput: the folder is no backup, or one that was not finished.
        StoreFailed: it cannot be read.
    """
    note = read_note(folder)
    problems = []
    with long_work("reading the copy's files", len(note.files), "files") as work:
        for name, sha256 in note.files.items():
            if wrong := _wrong(folder / name, sha256):
                problems.append(f"{folder / name} {wrong}")
            work.advance()
    if not problems:
        store = open_store_reader(str(folder))
        found = await audit(store, with_parameters=False)
        problems += found.problems
        found_run = await _run_of(store)
        if found_run.sequence != note.sequence:
            problems.append(f"its journal ends with record {found_run.sequence}, not {note.sequence}")
    return BackupReport(
        note.run_id, note.made_at, note.step, note.sequence, note.blobs, note.blob_bytes, tuple(problems)
    )


async def _run_of(store: StoreReader) -> Replayed:
    async for segment in store.journal.history():
        last = segment
    return replay(last)


def _wrong(path: Path, sha256: Sha256) -> str | None:
    """Return what is wrong with a file of the backup, or None."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if found == sha256 else "is damaged: its bytes have another digest than when it was copied"
