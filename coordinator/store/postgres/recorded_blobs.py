"""Small blobs of a run in PostgreSQL, which come with the records of its journal (`journal.py` appends both)."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from epochal.coordinator.store.blobs import BytesOfBlob, OpenBlob, blob_not_found
from epochal.coordinator.store.postgres.database import Connection, Database
from epochal.coordinator.store.postgres.journal import PostgresJournal
from epochal.state.errors import StoreFailed
from epochal.state.wire import Sha256

_SIZE = "SELECT size_bytes FROM epochal_blobs WHERE run_id = %(run)s AND sha256 = %(sha256)s"
_READ = "SELECT sha256, body FROM epochal_blobs WHERE run_id = %(run)s AND sha256 = ANY(%(digests)b)"
_HELD = "SELECT sha256 FROM epochal_blobs WHERE run_id = %(run)s"
_TOTAL = "SELECT coalesce(sum(size_bytes), 0)::bigint FROM epochal_blobs WHERE run_id = %(run)s"


class PostgresBlobReader:
    """The `RecordedBlobReader` protocol over a database."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id

    async def _fetch(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        async def fetch(connection: Connection) -> list[tuple[Any, ...]]:
            found = await connection.execute(sql, {"run": self._run_id, **values}, binary=True)
            return await found.fetchall()

        return await self._database.run(fetch)

    async def size(self, sha256: Sha256) -> int | None:
        rows = await self._fetch(_SIZE, sha256=bytes.fromhex(sha256))
        return int(rows[0][0]) if rows else None

    async def read(self, digests: Collection[Sha256]) -> Mapping[Sha256, bytes]:
        rows = await self._fetch(_READ, digests=[bytes.fromhex(sha256) for sha256 in digests]) if digests else []
        return {Sha256(bytes(sha256).hex()): bytes(body) for sha256, body in rows}

    async def held(self) -> frozenset[Sha256]:
        return frozenset(Sha256(bytes(sha256).hex()) for (sha256,) in await self._fetch(_HELD))

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


class PostgresRecordedBlobs(PostgresBlobReader):
    """The `RecordedBlobs` protocol over a database.

    Args:
        reading: the connection for reading.
        journal: appends them, and deletes them.
        run_id: the run.
    """

    def __init__(self, reading: Database, journal: PostgresJournal, run_id: str) -> None:
        super().__init__(reading, run_id)
        self._journal = journal

    @property
    def total_bytes(self) -> int:
        return self._journal.blob_bytes.total

    def arriving(self, size_bytes: int) -> AbstractContextManager[None]:
        return self._journal.blob_bytes.arriving(size_bytes)

    async def drop(self, digests: Collection[Sha256], known: int) -> None:
        await self._journal.drop_blobs([bytes.fromhex(sha256) for sha256 in digests], known)

    async def recount(self) -> None:
        async def count(connection: Connection) -> int:
            try:
                row = await (await connection.execute(_TOTAL, {"run": self._run_id})).fetchone()
            except psycopg.errors.UndefinedTable:  # a run of other rules is not served, and its tables stay as they are
                return 0
            return 0 if row is None else int(row[0])

        self._journal.blob_bytes.recounted(await self._database.run(count))
