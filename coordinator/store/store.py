"""The store of a run in a database, and the place where it lies: a folder of one machine, or a server's database.

Small results lie in the database; all other blobs lie in a folder or in an object store.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from epochal.coordinator.store.blobs import BlobReader, BlobStore
from epochal.coordinator.store.object_store.opening import open_object_store, readers_of
from epochal.coordinator.store.replication import Replication
from epochal.coordinator.store.run_blobs import LayeredReader, RunBlobs
from epochal.coordinator.store.sql.database import Database, JournalDatabase
from epochal.coordinator.store.sql.history import JournalReader
from epochal.coordinator.store.sql.journal import Journal
from epochal.coordinator.store.sql.notes import BACKUP, BLOBS, MOVED, ORIGIN, Keys, Notes
from epochal.coordinator.store.sql.recorded_blobs import RecordedBlobReader, RecordedBlobs
from epochal.runtime.clock import Clock
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import InvalidInput


class Place(Protocol):
    """Where a run lies, beside its tables: what a machine and a server give in different ways.

    Methods raise `StoreFailed` if the medium fails: `StoreBlocked` if the same may succeed later.
    """

    @property
    def scratch(self) -> Path:
        """Folder for temporary files of this process, on the disk that holds the run if that is this machine's."""
        ...

    @property
    def retry_s(self) -> float:
        """Time between two attempts to go on while it keeps nothing."""

    def clock(self, system: Clock) -> Clock:
        """Return the clock that all coordinators of the run share."""

    async def origin(self) -> bytes | None:
        """Return the identity of a database's tables, which no copy of them has; None if copies are noted as such."""

    async def is_served(self) -> bool:
        """Return whether another coordinator serves the run now."""

    async def served_at(self) -> str | None:
        """Return the address of the coordinator that serves the run now; None if none is known."""

    def note_address(self, url: str) -> None:
        """Note where the run is served, until the store is closed."""

    def sweeping(self) -> AbstractAsyncContextManager[bool]:
        """Yield whether blobs may be deleted; False while somebody copies the run."""

    def copying(self) -> AbstractAsyncContextManager[None]:
        """Let no sweep begin while the context is entered."""

    async def save_state_file(self, text: str) -> None:
        """Replace the kept `state.toml` atomically."""

    async def check_room(self, size_bytes: int) -> None:
        """Raise `StoreBlocked` unless this many bytes more can be kept now."""

    async def aclose(self) -> None:
        """Give the place back. May be called again."""


class StoreReader:
    """A run that is only read; meanwhile a coordinator may serve it.

    Args:
        database: is read.
        run_id: the run.
        place: where it lies.
        name: of the run, for messages.
        files: those of its blobs that lie in a folder; None if there is none.

    Attributes:
        run_id: the run.
        recorded_blobs: those of its blobs that lie in the database.
        own_blobs: those in a folder and in the database.
        blobs: all of the run's.
        blobs_folder: that coordinators of the run share; None if there is none.
        notes: the run's.
    """

    blobs_folder: Path | None = None

    def __init__(self, database: Database, run_id: str, place: Place, name: str, files: BlobReader | None) -> None:
        self.name = name
        self.run_id = run_id
        self.database = database
        self.place = place
        self.journal = JournalReader(database, run_id)
        self.recorded_blobs = RecordedBlobReader(database, run_id)
        self.notes = Notes(database, run_id)
        self.keys = Keys(self.notes, name)
        own = (self.recorded_blobs,) if files is None else (files, self.recorded_blobs)

        async def layers_of_own() -> Sequence[BlobReader]:
            return own

        async def all_layers() -> Sequence[BlobReader]:
            return (*own, *await readers_of(self.notes, name))

        self.own_blobs, self.blobs = LayeredReader(layers_of_own), LayeredReader(all_layers)

    async def aclose(self) -> None:
        """Close the database."""
        await self.database.aclose()


class Store:
    """A run that a coordinator serves. Its methods raise `StoreBlocked` or `StoreFailed` if the medium fails.

    Args:
        databases: the connection that appends, and another one for everything else.
        run_id: the run.
        place: where it lies.
        name: of the run, for messages.
        replication: its meetings with other coordinators; None if there are none.

    Attributes:
        name: as given.
        journal, keys, notes: the run's.
        recorded_blobs: those of its blobs that the journal keeps with its records.
        blobs: all of its blobs, once `open_blobs` has returned.
        replication: as given; None if the lock keeps out all other coordinators.
        is_backup: whether it is a backup from which no coordinator has started yet.
        blobs_folder: shared by coordinators, and noted once one serves the run from there; None if there is none.
    """

    def __init__(
        self,
        databases: tuple[JournalDatabase, Database],
        run_id: str,
        place: Place,
        name: str,
        replication: Replication | None = None,
    ) -> None:
        self.name = name
        self.place = place
        self.replication = replication
        self._databases = databases
        self.journal = Journal(*databases, run_id)
        self.notes = Notes(databases[1], run_id)
        self.keys = Keys(self.notes, name)
        self.recorded_blobs = RecordedBlobs(databases[1], self.journal, run_id)
        self.blobs: RunBlobs
        self.is_backup = False
        self.blobs_folder: bytes | None = None
        self._origin: bytes | None = None

    async def begin(self) -> None:
        """Make the tables, unless they are there, and read what the notes say of this place.

        Raises:
            InvalidInput: the tables are another version's, or the run is being moved elsewhere, or was.
            StoreFailed: the database cannot be used.
        """
        await self._databases[1].make_tables()
        await self.recorded_blobs.recount()
        moved = await self.notes.read(MOVED)
        if moved is not None:
            raise InvalidInput(f"{self.name} is being moved, or was moved, to {moved.decode()}: serve it from there")
        self._origin = await self.place.origin()
        kept = await self.notes.read(ORIGIN)
        self.is_backup = kept not in (None, self._origin) or await self.notes.read(BACKUP) is not None

    async def open_blobs(
        self, files: BlobStore | None, run_id: str, wanted: BlobPlace | None, max_total_bytes: int
    ) -> None:
        """Let this store have blobs in a folder, and in the object store that the state file names, if it names one.

        Raises as `open_object_store`.
        """
        is_shared = self.replication is not None
        found = await open_object_store(self.notes, self.name, run_id, wanted, max_total_bytes, is_shared=is_shared)
        self.blobs = RunBlobs(self.recorded_blobs, files, found)

    async def note_served(self) -> None:
        """Note that a coordinator has started from it: it is no backup any more."""
        if self._origin is not None and await self.notes.read(ORIGIN) != self._origin:
            await self.notes.write(ORIGIN, self._origin)
        if self.blobs_folder is not None:
            await self.notes.write(BLOBS, self.blobs_folder)
        await self.notes.delete(BACKUP)
        self.is_backup = False

    async def check_room(self, size_bytes: int) -> None:
        """Raise `StoreBlocked` or `StoreFailed` unless this many bytes more can be kept now."""
        await self.place.check_room(size_bytes)
        await self.blobs.check_answers()

    async def aclose(self) -> None:
        """Release the lock. May be called again."""
        if self.replication is not None:
            await self.replication.leave()
        for database in self._databases:
            await database.aclose()
        await self.place.aclose()
