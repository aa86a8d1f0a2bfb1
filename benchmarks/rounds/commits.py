"""Commits a second of a run in a folder, beside what SQLite, the disk and the journal of before do in the same run."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.rounds.old_journal import NO_HISTORY, fetched, records_per_s
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.store import Store
from epochal.state.wire import sha256_hex
from tests.support.data.stored_blobs import one_piece

EACH_S = 5.0
"""Time for which each case is repeated."""
RECORD_BYTES = 600
SMALL_COUNT, SMALL_BYTES = 64, 3000
LARGE_BYTES = 16 * 1024 * 1024
MAX_BLOB_BYTES = 2**40


async def measure(folder: Path) -> list[Figure]:
    """Return how often a second records, alone and with small blobs, and how fast large blobs, become durable."""
    bare = folder / "bare"
    bare.mkdir()
    synced = _per_s(_syncing(bare / "file"))
    alone, small = _per_s(_inserting(bare / "alone", 0)), _per_s(_inserting(bare / "small", SMALL_COUNT))
    old = await asyncio.to_thread(fetched, folder)
    store = await open_folder_store(folder / "run", MAX_BLOB_BYTES)
    try:
        await store.journal.open_segment(Snapshot(0, b"start"))
        records = _Records(store)
        one = await _awaited_per_s(records.one)
        old_one = await records_per_s(old, folder / "old-one", EACH_S, RECORD_BYTES, 0, 0)
        with_small = await _awaited_per_s(records.with_small_blobs)
        old_small = await records_per_s(old, folder / "old-small", EACH_S, RECORD_BYTES, SMALL_COUNT, SMALL_BYTES)
        large = await _awaited_per_s(records.large_blob) * LARGE_BYTES / 1e6
    finally:
        await store.aclose()
    beside = NO_HISTORY if old is None else "the journal of segments"
    return [
        Figure("records kept in a folder", one, "/s", "", alone, "a commit of SQLite"),
        Figure("the same, beside a synced file", one, "/s", "", synced, "a write and fsync"),
        Figure("records kept, beside the old journal", one, "/s", "", old_one, beside),
        Figure("records kept with 64 small blobs", with_small, "/s", "", small, "a commit of SQLite"),
        Figure("records with small blobs, beside the old journal", with_small, "/s", "", old_small, beside),
        Figure("large blobs received", large, "MB/s"),
    ]


class _Records:
    """Keeps records and blobs in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sequence = 0

    async def one(self, count: int = 0) -> None:
        self._sequence += 1
        blobs = {sha256_hex(blob): blob for blob in (os.urandom(SMALL_BYTES) for _ in range(count))}
        await self._store.journal.append(JournalRecord(self._sequence, bytes(RECORD_BYTES), blobs=blobs))

    async def with_small_blobs(self) -> None:
        await self.one(SMALL_COUNT)

    async def large_blob(self) -> None:
        data = os.urandom(LARGE_BYTES)
        await self._store.blobs.receive(sha256_hex(data), len(data), one_piece(data))


def _syncing(path: Path) -> Callable[[], None]:
    file = path.open("wb", buffering=0)

    def sync() -> None:
        file.write(bytes(RECORD_BYTES))
        os.fsync(file.fileno())

    return sync


def _inserting(path: Path, count: int) -> Callable[[], None]:
    connection = sqlite3.connect(path, isolation_level=None)
    for sql in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"):
        connection.execute(sql)
    connection.execute("CREATE TABLE records (number integer PRIMARY KEY, body blob)")
    connection.execute("CREATE TABLE blobs (sha256 blob PRIMARY KEY, body blob)")

    def insert() -> None:
        connection.execute("BEGIN")
        for _ in range(count):
            connection.execute("INSERT INTO blobs VALUES (?, ?)", (os.urandom(32), os.urandom(SMALL_BYTES)))
        connection.execute("INSERT INTO records (body) VALUES (?)", (bytes(RECORD_BYTES),))
        connection.execute("COMMIT")

    return insert


def _per_s(work: Callable[[], None]) -> float:
    count, began_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < EACH_S:
        work()
        count += 1
    return count / elapsed_s


async def _awaited_per_s(work: Callable[[], Awaitable[None]]) -> float:
    count, began_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < EACH_S:
        await work()
        count += 1
    return count / elapsed_s
