"""The store of a run in a database, with blobs in memory."""

import secrets

from epochal.coordinator.store.memory import MemoryBlobs
from epochal.coordinator.store.postgres.address import parse_address
from epochal.coordinator.store.postgres.store import PostgresStore
from epochal.coordinator.store.replication import Program


async def database_store(
    url: str, run_id: str | None = None, max_blob_bytes: int = 0, program: Program | None = None
) -> PostgresStore:
    """Open the store of a run, by default a new one, in the database at a URL."""
    return await PostgresStore.open(
        parse_address(url), run_id or secrets.token_hex(8), MemoryBlobs(max_blob_bytes), program
    )
