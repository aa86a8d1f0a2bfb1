"""Small blobs of a run in its database, which come with the records of its journal (`journal.py` appends both)."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager

from epochal.coordinator.store.blobs import BytesOfBlob, OpenBlob, blob_not_found
from epochal.coordinator.store.sql.database import Database, Row, Statement
from epochal.coordinator.store.sql.journal import SqlJournal
from epochal.state.errors import StoreFailed
from epochal.state.wire import Sha256

_SIZE = "SELECT size_bytes FROM epochal_blobs WHERE run_id = :run AND sha256 = :sha256"
_READ = "SELECT body FROM epochal_blobs WHERE run_id = :run AND sha256 = :sha256"
_HELD = "SELECT sha256 FROM epochal_blobs WHERE run_id = :run"
_TOTAL = "SELECT coalesce(sum(size_bytes), 0) FROM epochal_blobs WHERE run_id = :run"


class SqlBlobReader:
    """The `RecordedBlobReader` protocol over a database."""

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
        found = await self._rows(_READ, *digests) if digests else []
        return {sha256: bytes(rows[0][0]) for sha256, rows in zip(digests, found, strict=True) if rows}

    async def held(self) -> frozenset[Sha256]:
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


class SqlRecordedBlobs(SqlBlobReader):
    """The `RecordedBlobs` protocol over a database.

    Args:
        reading: the connection for reading.
        journal: appends them, and deletes them.
        run_id: the run.
    """

    def __init__(self, reading: Database, journal: SqlJournal, run_id: str) -> None:
        super().__init__(reading, run_id)
        self._journal = journal

    @property
    def total_bytes(self) -> int:
        return self._journal.blob_bytes.total

    def arriving(self, size_bytes: int) -> AbstractContextManager[None]:
        return self._journal.blob_bytes.arriving(size_bytes)

    async def drop(self, digests: Collection[Sha256], known: int) -> None:
        await self._journal.drop_blobs(list(digests), known)

    async def recount(self) -> None:
        ((row,),) = await self._rows(_TOTAL)
        self._journal.blob_bytes.recounted(int(row[0]))
