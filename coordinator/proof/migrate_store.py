"""Moving a run, history included, from a folder into a database, or back.

Theory of operation. The source is first marked as being moved, so that no coordinator serves it; then blobs are copied,
then the rows of its tables, which appear in their new place at once. Both are audited, and the reports must be equal.
Only then the move is done: a folder stays as it is, marked as moved, and rows of a server's database are removed.
Whatever fails before takes back what was made, and the mark, unless another move has made it, or it is not known
whether the run is in its new place.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import KeptBlob, blobs_kept, state_file_text
from epochal.coordinator.proof.audit import AuditReport, audit
from epochal.coordinator.proof.backup import Progress, check_key, copy_database, last_of
from epochal.coordinator.proof.kept_blobs import wrong_content
from epochal.coordinator.store.blobs import BlobStore
from epochal.coordinator.store.files.backup_folder import UNBOUNDED_BYTES, BackupFolder
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.files.folder import FolderPlace
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator.store.open import check_is_move, folder_of, is_database, open_store_reader, run_directory_of
from epochal.coordinator.store.postgres.address import parse_address, with_run
from epochal.coordinator.store.postgres.database import PostgresDatabase
from epochal.coordinator.store.postgres.opening import open_database_reader
from epochal.coordinator.store.postgres.place import ServerPlace
from epochal.coordinator.store.replication import LEASE_S
from epochal.coordinator.store.sql.copying import copy_rows, remove_run
from epochal.coordinator.store.sql.notes import BACKUP, BLOBS, BLOBS_OWNER, MOVED, OBJECT_STORE, ORIGIN, STATE_FILE
from epochal.coordinator.store.store import StoreReader
from epochal.runtime.long_work import BYTES, counted_pieces, long_work
from epochal.state.errors import InvalidInput, StoreFailed
from epochal.state.text.amounts import counted


@dataclass(frozen=True, slots=True)
class MoveReport:
    """A run that was moved: where it is now, and the audit of it there, which is that of where it was."""

    run_id: str
    store: str
    audit: AuditReport


class _MayBeThere(StoreFailed):
    """It is unknown whether the run is in its new place. See, and repeat the move if it is not."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The run at the source, its audit there, and those of its blobs that lie in files."""

    run: Run
    audit: AuditReport
    blobs: tuple[KeptBlob, ...]


async def move(source: str, target: str, folder: Path | None, progress: Progress) -> MoveReport:
    """Move a run from a folder into a database, or from a database into a new folder.

    Args:
        source: the store where the run is; nobody may serve it.
        target: the store where it is to be.
        folder: folder of blobs that coordinators of a run in a database share; it may be part of the target's URL.
        progress: called with what is done.

    Raises:
        InvalidInput: there is no such run, or it was moved already; or the target has it already, or is no store, or
            of the same kind as the source.
        StoreFailed: a coordinator serves it, or something cannot be read or written; the source is as it was.
    """
    check_is_move(source, target)
    if is_database(target):
        run_dir = run_directory_of(source)
        place = FolderPlace(run_dir)
        await place.lock()
        async with contextlib.AsyncExitStack() as held:
            held.push_async_callback(place.aclose)
            reader = await held.enter_async_context(contextlib.aclosing(open_folder_reader(run_dir, writes=True)))
            await held.enter_async_context(_marked(reader, parse_address(target).name))
            return await _into_database(reader, target, folder, progress)
    to = folder_of(target)
    if folder is not None:
        raise InvalidInput("--blobs goes with a target in a database; a folder keeps its blobs itself")
    reader = open_database_reader(source, writes=True)
    async with _marked(reader, str(to.absolute())):
        report = await _into_folder(reader, to, progress)
    await remove_run(reader.database, reader.run_id)
    if reader.blobs_folder is not None:
        await asyncio.to_thread(shutil.rmtree, reader.blobs_folder, ignore_errors=True)
    return report


@contextlib.asynccontextmanager
async def _marked(reader: StoreReader, to: str) -> AsyncIterator[None]:
    """Mark a run as moved, so that no coordinator serves it; take the mark back if the context is left with an error.

    A mark to the same place that a move before has left stays then: the run may be there.

    Raises:
        InvalidInput: a move to another place has marked it, or it is a backup.
        StoreFailed: a coordinator serves it, or the database cannot be used.
    """

    async def check() -> None:
        if await reader.place.is_served():
            raise StoreFailed(f"{reader.name} is served by a coordinator; stop all of them first")

    if await reader.notes.read(BACKUP) is not None:
        raise InvalidInput(f"{reader.name} is a backup: start from it with --restored once, and move the run then")
    await check()
    marked = await reader.notes.read(MOVED)
    if marked not in (None, to.encode()):
        raise InvalidInput(
            f"{reader.name} is being moved, or was moved, to {(marked or b'').decode()}: serve it from there, or "
            "repeat that move if it was killed"
        )
    await reader.notes.write(MOVED, to.encode())
    try:
        if isinstance(reader.place, ServerPlace):
            await asyncio.sleep(LEASE_S)  # one may have started just before the mark was there
            await check()
        yield
    except _MayBeThere:
        raise
    except BaseException:
        if marked is None:
            await reader.notes.delete(MOVED)
        raise


async def _into_database(source: StoreReader, target: str, folder: Path | None, progress: Progress) -> MoveReport:
    found, address = await _found(source), parse_address(target)
    run_id = found.run.state_file.run_id
    if address.run_id not in (None, run_id):
        raise InvalidInput(f"{address.name} names run {address.run_id!r}, but the run to be moved is {run_id!r}")
    folder = folder or (None if address.blobs is None else Path(address.blobs))
    if folder is None and (found.blobs or await source.notes.read(OBJECT_STORE) is None):
        raise InvalidInput(
            f"{address.name} keeps no results and checkpoints: name a folder for them that all coordinators of the run "
            "share (--blobs DIR)"
        )
    database = PostgresDatabase(address.writing(), address.name)
    async with contextlib.AsyncExitStack() as undo, contextlib.aclosing(database):
        await database.make_tables()
        origin = await ServerPlace(address, database, run_id).origin()
        notes = {ORIGIN: origin, STATE_FILE: state_file_text(found.run).encode()}
        if folder is not None:
            if await asyncio.to_thread((folder / run_id).exists):
                raise InvalidInput(f"{folder / run_id} exists; allowed: a folder that holds no blobs of this run")
            owner = os.urandom(16).hex().encode()
            shared = await DirectoryBlobs.shared(folder, run_id, owner, UNBOUNDED_BYTES)
            undo.push_async_callback(asyncio.to_thread, shutil.rmtree, folder / run_id, True)
            notes |= {BLOBS: str(folder.absolute()).encode(), BLOBS_OWNER: owner}
            await _copy_blobs(source, found, shared, progress)
        progress("copying the journal")
        with long_work("copying the journal", None, "rows") as work:
            try:
                await copy_rows(source.database, database, source.run_id, notes, work)
                progress("auditing it there")
                after = await audit(open_store_reader(with_run(target, run_id)), with_parameters=False)
                _refuse_difference(found.audit, after)
            except InvalidInput:
                raise
            except BaseException:
                await _remove_again(database, run_id)
                raise
        undo.pop_all()
    return MoveReport(run_id, address.name_of(run_id), after)


async def _remove_again(database: PostgresDatabase, run_id: str) -> None:
    """Remove a run whose move failed. Raise `StoreFailed` if that cannot be done now."""
    try:
        await remove_run(database, run_id)
    except StoreFailed as error:
        raise _MayBeThere(
            f"whether run {run_id!r} is in {database.name} now is unknown: {error}. Where it was it stays marked; see "
            "whether `epochal runs` lists it there, and repeat the move if it does not"
        ) from error


async def _into_folder(source: StoreReader, target: Path, progress: Progress) -> MoveReport:
    found = await _found(source)
    async with BackupFolder.making(target) as folder:
        await _copy_blobs(source, found, folder.blobs, progress)
        progress("copying the journal")
        await copy_database(source, folder)
        await folder.finish(state_file_text(found.run))
    progress("auditing it there")
    try:
        after = await audit(open_store_reader(str(target)), with_parameters=False)
        _refuse_difference(found.audit, after)
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
        raise
    return MoveReport(found.run.state_file.run_id, str(target), after)


async def _copy_blobs(source: StoreReader, found: _Found, target: BlobStore, progress: Progress) -> None:
    """Copy blobs that lie in files. Raise `StoreFailed` if the bytes of one are not what its name says."""
    size_bytes = sum(blob.size_bytes for blob in found.blobs)
    progress(f"copying {counted(len(found.blobs), 'blob')}, {size_bytes:,} bytes")
    with long_work("copying blobs", size_bytes, BYTES) as work:
        for blob in found.blobs:
            wrong = await wrong_content(blob, source.own_blobs)
            if wrong is not None:
                raise StoreFailed(wrong)
            pieces = counted_pieces(source.own_blobs.stream(blob.sha256, 0, blob.size_bytes), work)
            await target.receive(blob.sha256, blob.size_bytes, pieces)


async def _found(source: StoreReader) -> _Found:
    """Return the run at the source. Raise `StoreFailed` unless it is whole, and its key is there."""
    run = (await last_of(source)).run
    await check_key(source.keys, run, source.name)
    before = await audit(source, with_parameters=False)
    if before.problems:
        raise StoreFailed("the run is damaged where it is, and was not moved:\n  " + "\n  ".join(before.problems))
    held = await source.recorded_blobs.held()
    blobs = [blob for blob in blobs_kept(run) if await source.own_blobs.size(blob.sha256) and blob.sha256 not in held]
    return _Found(run, before, tuple(blobs))


def _refuse_difference(before: AuditReport, after: AuditReport) -> None:
    if before != after:
        raise StoreFailed(f"the run was not moved, because its audit differs there: {after}, not {before}")
