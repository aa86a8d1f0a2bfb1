"""The rows of a run in a folder, read and changed beside the program."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.coordinator.store.sql.history import JOURNAL_SIZE
from epochal.coordinator.store.sql.schema import hash_of_value


def execute(run_dir: Path, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Execute a statement, and return its rows."""
    with closing(sqlite3.connect(run_dir / DATABASE_FILE, isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def segments_in(run_dir: Path) -> list[int]:
    """Return the numbers of the kept segments."""
    return [number for (number,) in execute(run_dir, "SELECT number FROM epochal_segments ORDER BY number")]


def proofs_in(run_dir: Path) -> dict[int, bytes]:
    """Return the kept proofs, by the number of segments that each covers."""
    return dict(execute(run_dir, "SELECT segment_count, body FROM epochal_proofs ORDER BY segment_count"))


def put_proof(run_dir: Path, count: int, body: bytes) -> None:
    """Keep a proof as the program would have kept it."""
    columns = "run_id, segment_count, body, hash"
    sql = f"INSERT OR REPLACE INTO epochal_proofs ({columns}) SELECT run_id, ?, ?, ? FROM epochal_runs"
    execute(run_dir, sql, (count, body, hash_of_value(f"proof {count}", body)))
    count_bytes(run_dir)


def count_bytes(run_dir: Path) -> None:
    """Bring the journal's size up to date."""
    execute(run_dir, f"UPDATE epochal_runs SET journal_bytes = {JOURNAL_SIZE.replace(':run', 'epochal_runs.run_id')}")


def flip(run_dir: Path, table: str, column: str, where: str = "true") -> None:
    """Flip a bit in the middle of one value."""
    ((row, value),) = execute(run_dir, f"SELECT rowid, {column} FROM {table} WHERE {where} LIMIT 1")
    changed = bytearray(value)
    changed[len(changed) // 2] ^= 1
    execute(run_dir, f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (bytes(changed), row))
