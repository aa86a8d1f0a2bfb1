"""Small blobs that a journal keeps with its records: durable by the same transaction, and seen by all coordinators.

A blob that comes along with a message needs no writing of its own then, and a group of messages is kept at once.

The rule kept here: a blob is held only if the journal has the record with which it came. So who lists blobs first, and
reads the journal afterwards, knows of each whether the run needs it. Deleting them is a compare-and-swap, as appending
is: it does nothing if a record was appended that the deleter does not know, by which the run may need one of them.
"""

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager

from epochal.coordinator.store.blobs import BytesOfBlob, OpenBlob, blob_not_found
from epochal.coordinator.store.sql.database import Database, Row, Statement
from epochal.coordinator.store.sql.journal import Journal
from epochal.state.errors import StoreFailed
from epochal.state.wire import Sha256

DROPPED_AT_A_TIME = 1024
"""Maximum number of blobs that one transaction deletes; meanwhile no record is appended."""
MAX_RECENT_BYTES = 16 * 1024 * 1024
"""Size of the last blobs that stay in memory: a round's results are added up soon, and all fetch its update."""

_SIZE = "SELECT size_bytes FROM epochal_blobs WHERE run_id = :run AND sha256 = :sha256"
_READ = "SELECT body FROM epochal_blobs WHERE run_id = :run AND sha256 = :sha256"
_HELD = "SELECT sha256 FROM epochal_blobs WHERE run_id = :run"
_TOTAL = "SELECT coalesce(sum(size_bytes), 0) FROM epochal_blobs WHERE run_id = :run"


class RecordedBlobReader:
    """The `BlobReader` protocol over blobs kept with records."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id

    async def _rows(self, sql: str, *digests: Sha256) -> list[list[Row]]:
        values = [{"run": self._run_id, "sha256": bytes.fromhex(sha256)} for sha256 in digests]
        return await self._database.transact(*(Statement(sql, found) for found in values or [{"run": self._run_id}]))

    async def size(self, sha256: Sha256) -> int | None:
        (rows,) = await self._rows(_SIZE, sha256)
        return int(rows[0][0]) if rows else None

    async def read(self, digests: Collection[Sha256]) -> Mapping[Sha256, bytes]:
        """Return the bytes of those of these blobs that are held; the caller bounds their sizes."""
        found = await self._rows(_READ, *digests) if digests else []
        return {sha256: bytes(rows[0][0]) for sha256, rows in zip(digests, found, strict=True) if rows}

    async def held(self) -> frozenset[Sha256]:
        """Return the digests of all of them."""
        (rows,) = await self._rows(_HELD)
        return frozenset(Sha256(bytes(sha256).hex()) for (sha256,) in rows)

    async def _body(self, sha256: Sha256) -> bytes:
        found = (await self.read([sha256])).get(sha256)
        if found is None:
            raise blob_not_found(sha256)
        return found

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        data = await self._body(sha256)
        if stop > len(data):
            raise StoreFailed(f"blob {sha256} is shorter than {stop} bytes")
        if start < stop:
            yield data[start:stop]

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        yield BytesOfBlob(await self._body(sha256))


class RecordedBlobs(RecordedBlobReader):
    """Blobs kept with records (`JournalRecord.blobs`), as a coordinator of the run uses them.

    Args:
        reading: the connection for reading.
        journal: appends them, and deletes them.
        run_id: the run.
    """

    def __init__(self, reading: Database, journal: Journal, run_id: str) -> None:
        super().__init__(reading, run_id)
        self._journal = journal
        self._recent: OrderedDict[Sha256, BytesOfBlob] = OrderedDict()
        self._recent_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Size of all of them, and of those that arrive."""
        return self._journal.blob_bytes.total

    def arriving(self, size_bytes: int) -> AbstractContextManager[None]:
        """Count a blob that waits for its record, until the context is left."""
        return self._journal.blob_bytes.arriving(size_bytes)

    def recent(self, sha256: Sha256) -> BytesOfBlob | None:
        """Return a blob if it was kept or read lately; another coordinator may have deleted it since."""
        return self._recent.get(sha256)

    def note(self, blobs: Mapping[Sha256, bytes]) -> None:
        """Note that blobs were kept or read, so that they stay in memory for a while."""
        for sha256, data in blobs.items():
            self._forget(sha256)
            self._recent[sha256] = BytesOfBlob(data)
            self._recent_bytes += len(data)
        while self._recent_bytes > MAX_RECENT_BYTES:
            self._forget(next(iter(self._recent)))

    def _forget(self, sha256: Sha256) -> None:
        self._recent_bytes -= len(self._recent.pop(sha256, b""))

    async def read(self, digests: Collection[Sha256]) -> Mapping[Sha256, bytes]:
        found = await super().read(digests)
        self.note(found)
        return found

    async def drop(self, digests: Collection[Sha256], known: int) -> None:
        """Delete those of these blobs that are held, unless the journal has newer records.

        Args:
            digests: at most `DROPPED_AT_A_TIME`.
            known: number of the last record that the coordinator knows; the run after it does not need them.

        Raises:
            StoreConflict: that is not the last record of the journal; nothing is deleted.
            StoreFailed: the medium fails; `StoreBlocked` if the same may succeed later.
        """
        await self._journal.drop_blobs(list(digests), known)
        for sha256 in digests:
            self._forget(sha256)

    async def recount(self) -> None:
        """Bring `total_bytes` up to date: other coordinators of the run add and delete blobs as well."""
        ((row,),) = await self._rows(_TOTAL)
        self._journal.blob_bytes.recounted(int(row[0]))
