"""The tables of runs, and the hashes in them by which each row is known to be as it was kept.

`epochal_runs` has one row for each run: the number of its last record and that record's hash (`head`), which every
change compares. Snapshots and records are a chain: each has the hash of itself and of the one before. Notes and proofs
have a hash of themselves, and blobs are named by theirs. A run is there once its row in `epochal_runs` is.
"""

import hashlib
import struct

from epochal.state.errors import InvalidInput

SCHEMA_NUMBER = 1
"""Version of the tables. A program refuses those of another version, because it does not know what they mean."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS epochal_schema (number integer NOT NULL PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS epochal_runs (
        run_id text NOT NULL PRIMARY KEY,
        sequence bigint NOT NULL,
        head bytea NOT NULL,
        version bigint NOT NULL,
        segment integer NOT NULL,
        opened_at bigint NOT NULL,
        journal_bytes bigint NOT NULL,
        changed_s double precision NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS epochal_segments (
        run_id text NOT NULL,
        number integer NOT NULL,
        sequence bigint NOT NULL,
        previous bytea NOT NULL,
        snapshot bytea NOT NULL,
        hash bytea NOT NULL,
        PRIMARY KEY (run_id, number)
    )""",
    """CREATE TABLE IF NOT EXISTS epochal_records (
        run_id text NOT NULL,
        sequence bigint NOT NULL,
        segment integer NOT NULL,
        version bigint NOT NULL,
        body bytea NOT NULL,
        hash bytea NOT NULL,
        PRIMARY KEY (run_id, sequence)
    )""",
    """CREATE TABLE IF NOT EXISTS epochal_proofs (
        run_id text NOT NULL,
        segment_count integer NOT NULL,
        body bytea NOT NULL,
        hash bytea NOT NULL,
        PRIMARY KEY (run_id, segment_count)
    )""",
    """CREATE TABLE IF NOT EXISTS epochal_notes (
        run_id text NOT NULL,
        name text NOT NULL,
        value bytea NOT NULL,
        hash bytea NOT NULL,
        PRIMARY KEY (run_id, name)
    )""",
    """CREATE TABLE IF NOT EXISTS epochal_blobs (
        run_id text NOT NULL,
        sha256 bytea NOT NULL,
        size_bytes integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run_id, sha256)
    )""",
    f"INSERT INTO epochal_schema (number) VALUES ({SCHEMA_NUMBER}) ON CONFLICT DO NOTHING",
)
"""SQL that makes the tables where they are missing. SQLite takes the names of PostgreSQL's types."""

COLUMNS = {
    "epochal_segments": ("number", "sequence", "previous", "snapshot", "hash"),
    "epochal_records": ("sequence", "segment", "version", "body", "hash"),
    "epochal_proofs": ("segment_count", "body", "hash"),
    "epochal_notes": ("name", "value", "hash"),
    "epochal_blobs": ("sha256", "size_bytes", "body"),
    "epochal_runs": ("sequence", "head", "version", "segment", "opened_at", "journal_bytes", "changed_s"),
}
"""The columns of each table beside `run_id`, its key first. A copied run is there once the last table is copied."""

_NUMBERS = struct.Struct(">qq")


def hash_of_record(previous: bytes, sequence: int, version: int, body: bytes) -> bytes:
    """Return the hash of a record that follows the one with the hash `previous`, or the run's first snapshot."""
    return hashlib.sha256(b"record" + previous + _NUMBERS.pack(sequence, version) + body).digest()


def hash_of_snapshot(previous: bytes, sequence: int, body: bytes) -> bytes:
    """Return the hash of a snapshot after the record with the hash `previous`, which is empty for a run's first."""
    return hashlib.sha256(b"snapshot" + previous + _NUMBERS.pack(sequence, 0) + body).digest()


def hash_of_value(name: str, value: bytes) -> bytes:
    """Return the hash of a note or a proof by its name."""
    return hashlib.sha256(f"value {name}\0".encode() + value).digest()


def check_schema(number: int | None, name: str) -> None:
    """Raise `InvalidInput` unless tables are there and are those of this program."""
    if number is None:
        raise InvalidInput(f"{name} holds no run; allowed: a store in which `epochal coordinator` keeps one")
    if number != SCHEMA_NUMBER:
        raise InvalidInput(
            f"{name} has tables of version {number}, made by another version of Epochal; this one knows version "
            f"{SCHEMA_NUMBER}"
        )
