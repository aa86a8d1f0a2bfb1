"""Stores of a run in databases: in PostgreSQL with blobs in memory, and in a folder."""

import secrets
from pathlib import Path

from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.postgres.address import parse_address
from epochal.coordinator.store.postgres.opening import open_journal
from epochal.coordinator.store.replication import Program
from epochal.coordinator.store.sql.notes import KEY
from epochal.coordinator.store.store import Store
from tests.support.simulate.memory_store import MemoryBlobs


async def database_store(
    url: str, run_id: str | None = None, max_blob_bytes: int = 0, program: Program | None = None
) -> Store:
    """Open the store of a run, by default a new one, in the database at a URL."""
    store = await open_journal(parse_address(url), run_id or secrets.token_hex(8), program)
    await store.open_blobs(MemoryBlobs(max_blob_bytes), "", None, max_blob_bytes)
    return store


async def keep_private_key(run_dir: Path, private_key: bytes) -> None:
    """Keep a coordinator's key in the run directory of a run."""
    store = await open_folder_store(run_dir, 0)
    await store.notes.write(KEY, private_key)
    await store.aclose()
