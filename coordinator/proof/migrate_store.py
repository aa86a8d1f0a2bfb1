"""Moving a run, history included, from a run directory into a database, or back.

Theory of operation. The source is first marked as being moved, so that no coordinator serves it; then blobs are copied,
then journal, keys and notes, which appear in their new place at once. Both are audited, and the reports must be equal.
Only then the move is done: a run directory stays as it is, marked as moved, and rows of a database are removed.
Whatever fails before takes back what was made, and the mark, unless another move has made it, or it is not known
whether the run is in its new place.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import KeptBlob, blobs_kept, state_file_text
from epochal.coordinator.proof.audit import AuditReport, audit
from epochal.coordinator.proof.backup import copy_journal
from epochal.coordinator.proof.kept_blobs import wrong_content
from epochal.coordinator.store.blobs import BlobReader
from epochal.coordinator.store.directory.backup_folder import BackupFolder
from epochal.coordinator.store.directory.blobs import DirectoryBlobs
from epochal.coordinator.store.directory.moved import begin_move, end_move, undo_move
from epochal.coordinator.store.directory.run_directory import RunDirectory
from epochal.coordinator.store.keys import KEY_LOST
from epochal.coordinator.store.layered_blobs import layered_reader
from epochal.coordinator.store.object_store.opening import NoteInFile
from epochal.coordinator.store.open import StoreReader, folder_of, is_database, open_store_reader, run_directory_of
from epochal.coordinator.store.postgres.address import DatabaseAddress, parse_address, with_run
from epochal.coordinator.store.postgres.importing import importing, marked_as_moved, remove
from epochal.coordinator.store.postgres.notes import ADMIN_TOKEN, BLOBS, BLOBS_OWNER, KEY, OBJECT_STORES, STATE_FILE
from epochal.coordinator.store.postgres.opening import open_database_reader, shared_folder
from epochal.runtime.long_work import BYTES, LongWork, counted_pieces, long_work
from epochal.state.errors import InvalidInput, StoreFailed

UNBOUNDED_BYTES = 2**62
Progress = Callable[[str], None]
"""Receives a line about what is done next."""


@dataclass(frozen=True, slots=True)
class MoveReport:
    """A run that was moved: where it is now, and the audit of it there, which is that of where it was."""

    run_id: str
    store: str
    audit: AuditReport


@dataclass(frozen=True, slots=True)
class _Source:
    """A run that nobody serves any more.

    Attributes:
        reader: reads all of it.
        own_blobs: its blobs in a folder or a database; others are in object stores.
        stores_note: which object stores hold others; None if there are none.
    """

    reader: StoreReader
    own_blobs: BlobReader
    stores_note: bytes | None


@dataclass(frozen=True, slots=True)
class _Found:
    """The run at the source, and what else is moved with it."""

    run: Run
    version: int
    blobs: tuple[KeptBlob, ...]
    private_key: bytes
    admin_token_sha256: bytes | None


@dataclass(slots=True)
class _Doubt:
    """Whether the run may be in the database although its move failed."""

    is_there: bool = False


async def move(source: str, target: str, folder: Path | None, progress: Progress) -> MoveReport:
    """Move a run from a run directory into a database, or from a database into a new run directory.

    Args:
        source: the store where the run is; nobody may serve it.
        target: the store where it is to be.
        folder: folder of blobs that coordinators of a run in a database share; it may be part of the target's URL.
        progress: told what is done.

    Raises:
        InvalidInput: there is no such run, or it was moved already; or the target has it already, or is no store, or
            of the same kind as the source.
        StoreFailed: a coordinator serves it, or something cannot be read or written; the source is as it was.
    """
    if is_database(source) is is_database(target):
        raise InvalidInput("a run moves from a folder into a database (postgresql://…), or back")
    if is_database(target):
        run_dir = run_directory_of(source)
        doubt = _Doubt()
        async with _held_directory(run_dir, parse_address(target).name, doubt) as held:
            return await _into_database(held, target, folder, progress, doubt)
    to = folder_of(target)
    if folder is not None:
        raise InvalidInput("--blobs goes with a target in a database; a run directory keeps its blobs itself")
    address, reader = parse_address(source), open_database_reader(source)
    own: BlobReader = reader.recorded_blobs
    if reader.blobs_folder is not None:
        own = layered_reader(DirectoryBlobs.for_reading(reader.blobs_folder), own)
    async with marked_as_moved(address, reader.run_id, str(to.absolute())):
        report = await _into_folder(_Source(reader, own, await reader.notes.read(OBJECT_STORES)), to, progress)
    await remove(address, reader.run_id)
    if reader.blobs_folder is not None:
        await asyncio.to_thread(shutil.rmtree, reader.blobs_folder, ignore_errors=True)
    return report


@contextlib.asynccontextmanager
async def _held_directory(run_dir: Path, to: str, doubt: _Doubt) -> AsyncIterator[_Source]:
    """Lock a run directory and mark it as moved, finally once the context is left without an error.

    With an error the mark is taken back, unless it was left by a move before, or the run may be there.
    """
    reader = open_store_reader(str(run_dir))
    store = await RunDirectory.open(run_dir, UNBOUNDED_BYTES)
    try:
        if store.is_backup:
            raise InvalidInput(f"{run_dir} is a backup: start from it with --restored once, and move the run then")
        is_own = await asyncio.to_thread(begin_move, run_dir, to)
        try:
            yield _Source(reader, store.blobs, await NoteInFile(run_dir).read())
        except BaseException:
            if is_own and not doubt.is_there:
                await asyncio.to_thread(undo_move, run_dir)
            raise
        await asyncio.to_thread(end_move, run_dir)
    except OSError as error:
        raise StoreFailed(f"{run_dir}: {error.strerror or error}") from error
    finally:
        await store.aclose()


async def _into_database(
    source: _Source, target: str, folder: Path | None, progress: Progress, doubt: _Doubt
) -> MoveReport:
    found, before = await _found(source), await audit(source.reader, with_parameters=False)
    _refuse_problems(before)
    run_id = found.run.state_file.run_id
    address = parse_address(target)
    if address.run_id not in (None, run_id):
        raise InvalidInput(f"{address.name} names run {address.run_id!r}, but the run to be moved is {run_id!r}")
    folder = folder or (None if address.blobs is None else Path(address.blobs))
    if folder is None and (found.blobs or source.stores_note is None):
        raise InvalidInput(
            f"{address.name} keeps no results and checkpoints: name a folder for them that all coordinators of the run "
            "share (--blobs DIR)"
        )
    async with contextlib.AsyncExitStack() as undo:
        notes = {KEY: found.private_key, STATE_FILE: state_file_text(found.run).encode()}
        if folder is not None:
            shared, owner = await shared_folder(folder, run_id)
            undo.push_async_callback(asyncio.to_thread, shutil.rmtree, folder / run_id, True)
            notes |= {BLOBS: str(folder.absolute()).encode(), BLOBS_OWNER: owner}
            progress(f"copying {len(found.blobs)} blobs, {sum(blob.size_bytes for blob in found.blobs):,} bytes")
            with _copying(found.blobs) as work:
                for blob in found.blobs:
                    await shared.receive(blob.sha256, blob.size_bytes, counted_pieces(_pieces(source, blob), work))
        if found.admin_token_sha256 is not None:
            notes[ADMIN_TOKEN] = found.admin_token_sha256
        if source.stores_note is not None:
            notes[OBJECT_STORES] = source.stores_note
        progress("copying the journal")
        async with importing(address, run_id) as taken:
            for proof in (await source.reader.journal.proofs())[-1:]:
                await taken.keep_proof(proof)
            newest = await source.reader.journal.newest_segment()
            with long_work("copying the journal", None if newest is None else newest + 1, "segments") as work:
                async for segment in source.reader.journal.history():
                    await taken.keep_segment(segment)
                    work.reach(segment.number + 1)
            await taken.keep_notes(notes)
            await taken.end(found.version)
            doubt.is_there = True  # from here on: the answer to the commit may be lost
            undo.push_async_callback(_remove_again, address, run_id, doubt)
        progress("auditing it there")
        after = await audit(open_store_reader(with_run(target, run_id)), with_parameters=False)
        _refuse_difference(before, after)
        undo.pop_all()
    return MoveReport(run_id, address.name_of(run_id), after)


async def _remove_again(address: DatabaseAddress, run_id: str, doubt: _Doubt) -> None:
    """Remove a run whose move failed. Raise `StoreFailed` if that cannot be done now."""
    try:
        await remove(address, run_id)
    except StoreFailed as error:
        raise StoreFailed(
            f"whether run {run_id!r} is in {address.name} now is unknown: {error}. Its folder stays marked; see "
            "whether `epochal runs` lists it there, and repeat the move if it does not"
        ) from error
    doubt.is_there = False


async def _into_folder(source: _Source, target: Path, progress: Progress) -> MoveReport:
    found, before = await _found(source), await audit(source.reader, with_parameters=False)
    _refuse_problems(before)
    async with BackupFolder.making(target) as folder:
        progress(f"copying {len(found.blobs)} blobs, {sum(blob.size_bytes for blob in found.blobs):,} bytes")
        with _copying(found.blobs) as work:
            for blob in found.blobs:
                pieces = counted_pieces(_pieces(source, blob), work)
                await folder.keep_blob(blob.sha256, blob.size_bytes, pieces)
        progress("copying the journal")
        await copy_journal(source.reader, folder)
        await folder.keep_keys(found.private_key, found.admin_token_sha256)
        await folder.keep_state_file(state_file_text(found.run))
        if source.stores_note is not None:
            await folder.keep_object_stores(source.stores_note)
        await folder.finish(None)
    progress("auditing it there")
    try:
        after = await audit(open_store_reader(str(target)), with_parameters=False)
        _refuse_difference(before, after)
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
        raise
    return MoveReport(found.run.state_file.run_id, str(target), after)


def _copying(blobs: tuple[KeptBlob, ...]) -> AbstractContextManager[LongWork]:
    return long_work("copying blobs", sum(blob.size_bytes for blob in blobs), BYTES)


async def _found(source: _Source) -> _Found:
    """Return the run at the source. Raise `StoreFailed` unless its key and its journal are there."""
    last: Segment | None = None
    async for segment in source.reader.journal.history():
        last = segment
    if last is None:
        raise StoreFailed(f"{source.reader.name} holds no journal")
    replayed = replay(last)
    keys, own = source.reader.keys, source.own_blobs
    private_key = await keys.private_key()
    if private_key is None:
        raise StoreFailed(f"{source.reader.name} holds no coordinator's key; {KEY_LOST}")
    blobs = tuple([blob for blob in blobs_kept(replayed.run) if await own.size(blob.sha256) is not None])
    return _Found(replayed.run, replayed.document.version, blobs, private_key, await keys.admin_token_sha256())


async def _pieces(source: _Source, blob: KeptBlob) -> AsyncIterator[bytes]:
    """Yield a blob's bytes. Raise `StoreFailed` if they are not what its name says."""
    wrong = await wrong_content(blob, source.own_blobs)
    if wrong is not None:
        raise StoreFailed(wrong)
    async for piece in source.own_blobs.stream(blob.sha256, 0, blob.size_bytes):
        yield piece


def _refuse_problems(report: AuditReport) -> None:
    if report.problems:
        raise StoreFailed("the run is damaged where it is, and was not moved:\n  " + "\n  ".join(report.problems))


def _refuse_difference(before: AuditReport, after: AuditReport) -> None:
    if before != after:
        raise StoreFailed(f"the run was not moved, because its audit differs there: {after}, not {before}")
