"""A copy of a run as a folder, which has its name only when it is complete and durable.

```
TO.partial/                    the copy while it is made; a coordinator refuses to start from it
└── incomplete-backup          its mark, which is removed last; locked by the process that makes the copy
TO/                            a run directory; a note in its database says what was copied
```
"""

import asyncio
import contextlib
import fcntl
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.files.folder import DATABASE_FILE, STATE_FILE
from epochal.runtime.files.durable_files import (
    PRIVATE_FOLDER_MODE,
    PRIVATE_MODE,
    make_folder,
    open_private,
    replace_file,
    sync_folder,
)
from epochal.state.errors import InvalidInput, StoreFailed

INCOMPLETE_FILE = "incomplete-backup"
PARTIAL_SUFFIX = ".partial"
UNBOUNDED_BYTES = 2**62


class BackupFolder:
    """A copy that is being made.

    Attributes:
        folder: where it is made.
        blobs: those that it keeps as files.
    """

    def __init__(self, folder: Path, to: Path, blobs: DirectoryBlobs) -> None:
        self.folder = folder
        self.blobs = blobs
        self._to = to

    @property
    def database(self) -> Path:
        """The file of its database."""
        return self.folder / DATABASE_FILE

    @classmethod
    @contextlib.asynccontextmanager
    async def making(cls, to: Path) -> AsyncIterator["BackupFolder"]:
        """Yield a new copy, which vanishes if the context is left before `finish`.

        Raises:
            InvalidInput: the folder exists already.
            StoreFailed: it cannot be written, or another process makes a copy there.
        """
        to = await asyncio.to_thread(to.absolute)
        folder = to.with_name(to.name + PARTIAL_SUFFIX)
        with _reported(to), contextlib.ExitStack() as opened:
            opened.enter_context(await asyncio.to_thread(_begin, folder, to))
            try:
                yield cls(folder, to, await DirectoryBlobs.open(folder, UNBOUNDED_BYTES))
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def finish(self, state_file: str) -> None:
        """Keep the run's `state.toml`, and give the complete copy its name, durably."""
        await asyncio.to_thread(self._finish, state_file.encode())

    def _finish(self, state_file: bytes) -> None:
        replace_file(self.folder / STATE_FILE, state_file, mode=PRIVATE_MODE)
        (self.folder / INCOMPLETE_FILE).unlink()
        sync_folder(self.folder)
        self.folder.rename(self._to)  # onto nothing, or onto an empty folder
        sync_folder(self._to.parent)


def refuse_unfinished(folder: Path) -> None:
    """Raise `InvalidInput` if the folder is a copy that was not finished."""
    if (folder / INCOMPLETE_FILE).exists():
        raise InvalidInput(f"{folder} is a backup that was not finished; delete it, and use another or make it again")


def _begin(folder: Path, to: Path) -> BinaryIO:
    """Create the folder of an unfinished copy, in place of one whose process has ended; return its locked mark."""
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
