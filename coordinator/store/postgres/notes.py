"""A run's secrets and notes in PostgreSQL: a value for each name, replaced as a whole."""

import os
from functools import partial

from epochal.coordinator.store.keys import KEY_LOST
from epochal.coordinator.store.postgres.database import Connection, Database
from epochal.runtime.files.key_file import RAW_KEY_BYTES
from epochal.state.errors import StoreFailed

KEY = "coordinator.key"
ADMIN_TOKEN = "admin-token.sha256"
STATE_FILE = "state.toml"
ORIGIN = "origin"
MOVED = "moved-to"
BLOBS = "blobs"
BLOBS_OWNER = "blobs-owner"
HISTORY = "history"
OBJECT_STORES = "object-stores.json"

_ORIGIN = """
SELECT format('%s/%s/%s', (SELECT system_identifier FROM pg_control_system()),
  (SELECT oid FROM pg_database WHERE datname = current_database()), 'epochal_runs'::regclass::oid)
"""
_READ = "SELECT value FROM epochal_notes WHERE run_id = %s AND name = %s"
_WRITE = """
INSERT INTO epochal_notes (run_id, name, value) VALUES (%s, %s, %s)
ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value, noted_at = clock_timestamp()
"""
_CREATE = "INSERT INTO epochal_notes (run_id, name, value) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_SET_ASIDE = """
UPDATE epochal_notes SET name = name || '.old-' || (
  SELECT 1 + count(*) FROM epochal_notes WHERE run_id = %(run)s AND starts_with(name, %(name)s || '.old-'))
WHERE run_id = %(run)s AND name = %(name)s
"""
_DELETE = "DELETE FROM epochal_notes WHERE run_id = %s AND name = %s"


async def origin_of(connection: Connection) -> bytes:
    """Return what tells the tables of a database from all copies of them; the value of the note `ORIGIN`."""
    row = await (await connection.execute(_ORIGIN)).fetchone()
    assert row is not None
    return str(row[0]).encode()


class PostgresNotes:
    """The notes of one run. Every method raises `StoreFailed` if the database fails."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id

    async def read(self, name: str) -> bytes | None:
        """Return the value of this name, or None."""

        async def read(connection: Connection) -> bytes | None:
            row = await (await connection.execute(_READ, (self._run_id, name))).fetchone()
            return None if row is None else bytes(row[0])

        return await self._database.run(read)

    async def write(self, name: str, value: bytes) -> None:
        """Replace the value of this name."""
        await self._database.run(partial(_execute, _WRITE, (self._run_id, name, value)))

    async def create(self, name: str, value: bytes) -> bytes:
        """Return the value of this name, which is this one if there was none."""
        await self._database.run(partial(_execute, _CREATE, (self._run_id, name, value)))
        found = await self.read(name)
        return value if found is None else found

    async def replace(self, name: str, value: bytes) -> None:
        """Replace the value of this name; the one before is set aside, numbered."""

        async def replace(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute(_SET_ASIDE, {"run": self._run_id, "name": name})
                await connection.execute(_WRITE, (self._run_id, name, value))

        await self._database.run(replace)

    async def delete(self, name: str) -> None:
        """Delete the value of this name, if there is one."""
        await self._database.run(partial(_execute, _DELETE, (self._run_id, name)))


class NoteInDatabase:
    """The `KeptNote` protocol over the notes of a run (`coordinator/store/object_store/opening.py`)."""

    is_shared = True

    def __init__(self, notes: PostgresNotes, owner: str) -> None:
        self.owner = owner
        self.place = f"{owner}, note {OBJECT_STORES}"
        self._notes = notes

    async def read(self) -> bytes | None:
        return await self._notes.read(OBJECT_STORES)

    async def write(self, data: bytes) -> None:
        await self._notes.write(OBJECT_STORES, data)


async def _execute(sql: str, values: tuple[object, ...], connection: Connection) -> None:
    await connection.execute(sql, values)


class PostgresKeys:
    """The `CoordinatorKeys` protocol over the notes of a run."""

    def __init__(self, notes: PostgresNotes, name: str) -> None:
        self._notes = notes
        self._name = name

    async def private_key(self) -> bytes | None:
        return self._checked(await self._notes.read(KEY), RAW_KEY_BYTES, KEY, KEY_LOST)

    async def create_private_key(self) -> bytes:
        kept = self._checked(await self._notes.create(KEY, os.urandom(RAW_KEY_BYTES)), RAW_KEY_BYTES, KEY, KEY_LOST)
        assert kept is not None, "there is one now"
        return kept

    async def replace_private_key(self) -> bytes:
        key = os.urandom(RAW_KEY_BYTES)
        await self._notes.replace(KEY, key)
        return key

    async def admin_token_sha256(self) -> bytes | None:
        return self._checked(await self._notes.read(ADMIN_TOKEN), 32, ADMIN_TOKEN, "start with --new-admin-token")

    async def create_admin_token_sha256(self, digest: bytes) -> bytes:
        return await self._notes.create(ADMIN_TOKEN, digest)

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        await self._notes.write(ADMIN_TOKEN, digest)

    def _checked(self, value: bytes | None, size_bytes: int, name: str, advice: str) -> bytes | None:
        if value is not None and len(value) != size_bytes:
            raise StoreFailed(f"{self._name}: {name} has {len(value)} bytes, not {size_bytes}; {advice}")
        return value
