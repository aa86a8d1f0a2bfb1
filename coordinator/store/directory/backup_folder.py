"""A copy of a run as a folder, which has its name only when it is complete and durable.

```
TO.partial/                    the copy while it is made; a coordinator refuses to start from it
├── incomplete-backup          its mark, which is removed last; locked by the process that makes the copy
TO/                            a run directory, with
└── backup.json                what was copied: a start needs --restored, and removes it
```
"""

import asyncio
import contextlib
import fcntl
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.store.directory.blobs import DirectoryBlobs
from epochal.coordinator.store.directory.journal_files import proof_file, segment_file
from epochal.coordinator.store.directory.keys import ADMIN_FILE, KEY_FILE, KEYS_FOLDER
from epochal.coordinator.store.directory.segments import encode_mark, encode_segment
from epochal.coordinator.store.journal import StoredProof
from epochal.coordinator.store.object_store.opening import NOTE_FILE as STORES_FILE
from epochal.runtime.files.durable_files import (
    PRIVATE_FOLDER_MODE,
    PRIVATE_MODE,
    make_folder,
    open_private,
    replace_file,
    sync_folder,
)
from epochal.state.errors import InvalidDocument, InvalidInput, StoreFailed
from epochal.state.wire import Sha256, canonical_json, parse_document, sha256_hex

NOTE_FILE = "backup.json"
INCOMPLETE_FILE = "incomplete-backup"
PARTIAL_SUFFIX = ".partial"
BACKUP_FORMAT = 1
UNBOUNDED_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class BackupNote:
    """The contents of a backup.

    Attributes:
        sequence: number of the last journal record that was copied.
        step: the step that the run had reached.
        made_at: when the copy was begun, in ISO 8601.
        blobs: number of blobs.
        blob_bytes: their size.
        files: SHA-256 of every other file, by its place in the backup.
    """

    format: int
    run_id: str
    sequence: int
    step: int
    made_at: str
    blobs: int
    blob_bytes: int
    files: Mapping[str, Sha256]


class BackupFolder:
    """A backup that is being made."""

    def __init__(self, folder: Path, to: Path, blobs: DirectoryBlobs) -> None:
        self._folder = folder
        self._to = to
        self._blobs = blobs
        self.files: dict[str, Sha256] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def making(cls, to: Path) -> AsyncIterator["BackupFolder"]:
        """Yield a new backup, which vanishes if the context is left before `finish`.

        Raises:
            InvalidInput: the folder exists already.
            StoreFailed: it cannot be written, or another process makes a backup there.
        """
        to = await asyncio.to_thread(to.absolute)
        folder = to.with_name(to.name + PARTIAL_SUFFIX)
        with _reported(to), contextlib.ExitStack() as opened:
            opened.enter_context(await asyncio.to_thread(_begin, folder, to))
            try:
                blobs = await DirectoryBlobs.open(folder, UNBOUNDED_BYTES)
                yield cls(folder, to, blobs)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def keep_segment(self, segment: Segment, successor: int | None) -> None:
        """Keep a segment of the journal, which names its successor if there is one."""
        mark = b"" if successor is None else encode_mark(successor)
        await self._keep(segment_file(segment.number), encode_segment(segment) + mark)

    async def keep_proof(self, proof: StoredProof) -> None:
        """Keep what stands for the journal's first segments."""
        await self._keep(proof_file(proof.segment_count), proof.body)

    async def keep_keys(self, private_key: bytes, admin_token_sha256: bytes | None) -> None:
        """Keep the coordinator's key and the hash of the admin token."""
        await self._keep(f"{KEYS_FOLDER}/{KEY_FILE}", private_key)
        if admin_token_sha256 is not None:
            await self._keep(f"{KEYS_FOLDER}/{ADMIN_FILE}", admin_token_sha256.hex().encode())

    async def keep_state_file(self, text: str) -> None:
        """Keep the run's `state.toml`."""
        await self._keep("state.toml", text.encode())

    async def keep_blob(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes]) -> None:
        """Keep a blob. Raise `Refused(Refusal.BLOB_MISMATCH)` if its bytes are not those that it is named for."""
        if await self._blobs.size(sha256) is None:
            await self._blobs.receive(sha256, size_bytes, body)

    async def drop_blobs_except(self, kept: frozenset[Sha256]) -> None:
        """Delete every other blob."""
        for sha256 in await self._blobs.held() - kept:
            await self._blobs.delete(sha256)

    async def keep_object_stores(self, note: bytes) -> None:
        """Keep the note on the object stores that hold blobs of the run."""
        await self._keep(STORES_FILE, note)

    async def finish(self, note: BackupNote | None) -> None:
        """Give the complete backup its name, durably; without a note it is no backup, but the run itself."""
        await asyncio.to_thread(self._finish, note)

    def _finish(self, note: BackupNote | None) -> None:
        if note is not None:
            replace_file(self._folder / NOTE_FILE, canonical_json(note), mode=PRIVATE_MODE)
        (self._folder / INCOMPLETE_FILE).unlink()
        sync_folder(self._folder)
        self._folder.rename(self._to)  # onto nothing, or onto an empty folder
        sync_folder(self._to.parent)

    async def _keep(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._write, self._folder / name, data)
        self.files[name] = sha256_hex(data)

    def _write(self, path: Path, data: bytes) -> None:
        make_folder(path.parent, mode=PRIVATE_FOLDER_MODE)
        replace_file(path, data, mode=PRIVATE_MODE)


def read_note(folder: Path) -> BackupNote:
    """Return what a backup says that it holds.

    Raises:
        InvalidInput: the folder is no complete backup.
        StoreFailed: the note is damaged.
    """
    refuse_unfinished(folder)
    try:
        data = (folder / NOTE_FILE).read_bytes()
    except FileNotFoundError:
        raise InvalidInput(
            f"{folder} is not a backup: it holds no {NOTE_FILE}. Once a coordinator has started from a backup with "
            "--restored, it is a run directory, which `epochal audit` checks"
        ) from None
    except OSError as error:
        raise StoreFailed(f"{folder / NOTE_FILE}: {error.strerror or error}") from error
    try:
        note: BackupNote = parse_document(BackupNote, data)
    except InvalidDocument as error:
        raise StoreFailed(f"{folder / NOTE_FILE} is damaged: {error}") from error
    if note.format != BACKUP_FORMAT:
        raise StoreFailed(f"{folder / NOTE_FILE} has format {note.format}; this program reads {BACKUP_FORMAT}")
    return note


def refuse_unfinished(folder: Path) -> None:
    """Raise `InvalidInput` if the folder is a backup that was not finished."""
    if (folder / INCOMPLETE_FILE).exists():
        raise InvalidInput(f"{folder} is a backup that was not finished; delete it, and use another or make it again")


def _begin(folder: Path, to: Path) -> BinaryIO:
    """Create the folder of an unfinished backup, in place of one whose process has ended; return its locked mark."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidInput(f"{to} exists; allowed: a folder that does not exist yet, or an empty one")
    mark = folder / INCOMPLETE_FILE
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} exists, which is where the backup is made; rename or delete it")
    make_folder(to.parent)
    make_folder(folder, mode=PRIVATE_FOLDER_MODE)
    lock = open_private(mark)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != mark:
                path.unlink()
        sync_folder(folder)
    except BlockingIOError:
        lock.close()
        raise StoreFailed(f"another process makes a backup in {folder}") from None
    except BaseException:
        lock.close()
        raise
    return lock


@contextlib.contextmanager
def _reported(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"the backup {to} cannot be written: {error.strerror or error}") from error
