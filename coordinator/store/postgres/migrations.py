"""The tables of runs in PostgreSQL, in numbered steps: each is applied once, under a lock, and never changed again.

The rule kept here: a step only adds, so that a program of the version before goes on while the newer one has applied
it. A program refuses tables that are newer than itself, because it does not know what they mean.
"""

import json

import psycopg

from epochal.coordinator.store.postgres.database import Connection
from epochal.state.errors import InvalidInput, StoreFailed

LOCK = 0x45504F4348414C00
"""Number of the advisory lock that is held while steps are applied."""

LAST_STEP = "SELECT coalesce(max(number), 0) FROM epochal_migrations"
"""Returns the number of the last step that was applied, where there is such a table."""

_NEWEST = """
SELECT coalesce(
  (SELECT body FROM epochal_records WHERE run_id = %(run)s ORDER BY sequence DESC LIMIT 1),
  (SELECT snapshot FROM epochal_segments WHERE run_id = %(run)s ORDER BY number DESC LIMIT 1))
"""

MIGRATIONS = (
    """
    CREATE TABLE epochal_runs (
        run_id text PRIMARY KEY,
        sequence bigint NOT NULL,
        head bytea NOT NULL,
        version bigint NOT NULL,
        segment integer NOT NULL,
        is_opening boolean NOT NULL,
        journal_bytes bigint NOT NULL,
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE TABLE epochal_segments (
        run_id text NOT NULL REFERENCES epochal_runs ON DELETE CASCADE,
        number integer NOT NULL,
        sequence bigint NOT NULL,
        snapshot bytea NOT NULL,
        PRIMARY KEY (run_id, number)
    );
    CREATE TABLE epochal_records (
        run_id text NOT NULL REFERENCES epochal_runs ON DELETE CASCADE,
        sequence bigint NOT NULL,
        segment integer NOT NULL,
        version bigint NOT NULL,
        body bytea NOT NULL,
        kept_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (run_id, sequence)
    );
    CREATE TABLE epochal_proofs (
        run_id text NOT NULL REFERENCES epochal_runs ON DELETE CASCADE,
        segment_count integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run_id, segment_count)
    );
    CREATE TABLE epochal_notes (
        run_id text NOT NULL,
        name text NOT NULL,
        value bytea NOT NULL,
        noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (run_id, name)
    );
    CREATE UNLOGGED TABLE epochal_replicas (
        run_id text NOT NULL,
        replica text NOT NULL,
        url text,
        heartbeats bytea NOT NULL,
        seen_at timestamptz NOT NULL,
        PRIMARY KEY (run_id, replica)
    );
    CREATE UNLOGGED TABLE epochal_leases (
        run_id text PRIMARY KEY,
        holder text NOT NULL,
        ends_at timestamptz NOT NULL
    );
    """,
    """
    ALTER TABLE epochal_replicas ADD COLUMN program text, ADD COLUMN rules integer;
    """,
    """
    CREATE TABLE epochal_blobs (
        run_id text NOT NULL,
        sha256 bytea NOT NULL,
        size_bytes integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run_id, sha256) INCLUDE (size_bytes)
    ) WITH (toast_tuple_target = 8160);
    ALTER TABLE epochal_blobs ALTER COLUMN body SET STORAGE EXTERNAL;
    """,
)
"""The SQL of each step; the first is number 1.

`epochal_runs` has one row for each run: the number of its last record and that record's SHA-256 (`head`), which every
change compares. `epochal_blobs` holds small results, which come with the records that count them; they do not compress,
and those of a few kilobytes stay in the row. `epochal_notes` holds a run's secrets and its `state.toml`. What is
unlogged is only true for seconds.
"""


async def migrate(connection: Connection, name: str, run_id: str = "", rules: int | None = None) -> None:
    """Apply the steps that the database lacks. Others that do the same wait, and find nothing to do.

    Args:
        connection: to the database.
        name: the database, for messages.
        run_id: a run that is to be served. Where it was kept under other rules, the tables stay as they are: this
            program cannot serve it, and older ones that can would refuse newer tables at their next start.
        rules: version of this program's rules; None if no run is to be served.

    Raises:
        InvalidInput: the tables are newer than this program.
        psycopg.Error: a step could not be applied; none of them was.
    """
    known = await _applied(connection, name)
    is_other = known and rules is not None and await _has_other_rules(connection, run_id, rules)
    if known == len(MIGRATIONS) or is_other:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS epochal_migrations ("
            "number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        applied = await _applied(connection, name)
        for number, sql in enumerate(MIGRATIONS[applied:], applied + 1):
            await connection.execute(sql.encode())
            await connection.execute("INSERT INTO epochal_migrations (number) VALUES (%s)", (number,))


def check_readable(applied: int, name: str) -> None:
    """Raise unless tables are those of this program.

    Args:
        applied: number of the last step that was applied; 0 if there is none.
        name: the database, for messages.

    Raises:
        InvalidInput: there are none, or newer ones.
        StoreFailed: they are older: a coordinator that starts brings them up to date.
    """
    _check_known(applied, name)
    if applied == 0:
        raise InvalidInput(f"{name} holds no run; allowed: a database in which `epochal coordinator` keeps one")
    if applied < len(MIGRATIONS):
        raise StoreFailed(
            f"{name} has tables of step {applied}, and this program reads those of step {len(MIGRATIONS)}; "
            "the next start of a coordinator of this version brings them up to date"
        )


def _check_known(applied: int, name: str) -> None:
    if applied > len(MIGRATIONS):
        raise InvalidInput(
            f"{name} has tables of step {applied}, made by a newer version of Epochal; this one knows the steps up to "
            f"{len(MIGRATIONS)}. A newer coordinator of any run in this database or schema may have brought them up to "
            "date. Start a version that is as new as the tables"
        )


async def _has_other_rules(connection: Connection, run_id: str, rules: int) -> bool:
    """Return whether a run's newest entry was kept under other rules."""
    row = await (await connection.execute(_NEWEST, {"run": run_id})).fetchone()
    try:
        return row is not None and bool(json.loads(row[0])["rules_version"] != rules)
    except (ValueError, KeyError, TypeError):  # damaged, as a start will say
        return False


async def _applied(connection: Connection, name: str) -> int:
    """Return the number of the last step that was applied; 0 if there is none."""
    try:
        row = await (await connection.execute(LAST_STEP)).fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    applied = 0 if row is None else int(row[0])
    _check_known(applied, name)
    return applied
