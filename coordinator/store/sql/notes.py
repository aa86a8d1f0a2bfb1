"""A run's secrets and notes: a value for each name, replaced as a whole."""

import os

from epochal.coordinator.store.sql.database import Database, Statement
from epochal.coordinator.store.sql.schema import hash_of_value
from epochal.runtime.files.key_file import RAW_KEY_BYTES
from epochal.state.errors import StoreFailed

KEY = "coordinator.key"
ADMIN_TOKEN = "admin-token.sha256"
STATE_FILE = "state.toml"
ORIGIN = "origin"
BACKUP = "backup"
PUBLISHED = b"published"
"""Value of the note `BACKUP` in a copy for outsiders (`coordinator/proof/publishing.py`), which holds no secret."""
MOVED = "moved-to"
BLOBS = "blobs"
BLOBS_OWNER = "blobs-owner"
OBJECT_STORE = "object-store.json"
SERVER = "server"
OF_A_PLACE = (ORIGIN, BACKUP, MOVED, BLOBS, BLOBS_OWNER, SERVER)
"""Notes that are true of one place of a run, and not of where it is copied to."""
KEY_LOST = (
    "restore it from a backup; if it is lost, start with --new-coordinator-key, which gives the run a new key, and "
    "members join again by themselves"
)
"""Advice about a coordinator's key that is missing or wrong."""
ADVICE = {KEY: KEY_LOST, ADMIN_TOKEN: "start with --new-admin-token"}
"""Advice about secrets that are damaged."""

_READ = "SELECT value, hash FROM epochal_notes WHERE run_id = :run AND name = :name"
_CREATE = """
INSERT INTO epochal_notes (run_id, name, value, hash) VALUES (:run, :name, :value, :hash) ON CONFLICT DO NOTHING
"""
_WRITE = """
INSERT INTO epochal_notes (run_id, name, value, hash) VALUES (:run, :name, :value, :hash)
ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value, hash = excluded.hash
"""
_DELETE = "DELETE FROM epochal_notes WHERE run_id = :run AND name = :name"
_NAMES = "SELECT name FROM epochal_notes WHERE run_id = :run ORDER BY name"


class Notes:
    """The notes of one run. Every method raises `StoreFailed` if the database fails, or has another value than kept."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id

    async def read(self, name: str) -> bytes | None:
        """Return the value of this name, or None."""
        (rows,) = await self._database.transact(Statement(_READ, {"run": self._run_id, "name": name}))
        if not rows:
            return None
        value, kept = map(bytes, rows[0])
        if hash_of_value(name, value) != kept:
            advice = f"; {ADVICE[name]}" if name in ADVICE else ""
            raise StoreFailed(f"{self._database.name}: the note {name} is damaged{advice}")
        return value

    async def names(self) -> tuple[str, ...]:
        """Return the names of all notes."""
        (rows,) = await self._database.transact(Statement(_NAMES, {"run": self._run_id}))
        return tuple(name for (name,) in rows)

    async def write(self, name: str, value: bytes) -> None:
        """Replace the value of this name."""
        await self._database.transact(self.writing(name, value))

    async def create(self, name: str, value: bytes) -> bytes:
        """Return the value of this name, which is this one if there was none."""
        await self._database.transact(Statement(_CREATE, self._values(name, value)))
        found = await self.read(name)
        return value if found is None else found

    async def delete(self, name: str) -> None:
        """Delete the value of this name, if there is one."""
        await self._database.transact(Statement(_DELETE, {"run": self._run_id, "name": name}))

    def writing(self, name: str, value: bytes) -> Statement:
        """Return the statement that replaces the value of this name."""
        return Statement(_WRITE, self._values(name, value))

    def _values(self, name: str, value: bytes) -> dict[str, object]:
        return {"run": self._run_id, "name": name, "value": value, "hash": hash_of_value(name, value)}


class Keys:
    """The secrets of a run that its coordinators share: they stay valid after a restart and at all coordinators.

    Every method raises `StoreFailed` if the database fails or holds something else.
    """

    def __init__(self, notes: Notes, name: str) -> None:
        self._notes = notes
        self._name = name

    async def private_key(self) -> bytes | None:
        """Return the coordinator's Ed25519 private key (32 raw bytes), which signs tokens; None before there is one."""
        return self._checked(await self._notes.read(KEY), RAW_KEY_BYTES, KEY)

    async def create_private_key(self) -> bytes:
        """Return the coordinator's private key, created if there is none; several callers at once get the same one."""
        kept = self._checked(await self._notes.create(KEY, os.urandom(RAW_KEY_BYTES)), RAW_KEY_BYTES, KEY)
        assert kept is not None, "there is one now"
        return kept

    async def replace_private_key(self) -> bytes:
        """Return a new private key, which replaces the one that is kept, readable or not."""
        key = os.urandom(RAW_KEY_BYTES)
        await self._notes.write(KEY, key)
        return key

    async def admin_token_sha256(self) -> bytes | None:
        """Return the SHA-256 of the operator's token, or None before there is one."""
        return self._checked(await self._notes.read(ADMIN_TOKEN), 32, ADMIN_TOKEN)

    async def create_admin_token_sha256(self, digest: bytes) -> bytes:
        """Return the SHA-256 of the operator's token; it is this one if there was none."""
        return await self._notes.create(ADMIN_TOKEN, digest)

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        """Replace the SHA-256 of the operator's token."""
        await self._notes.write(ADMIN_TOKEN, digest)

    def _checked(self, value: bytes | None, size_bytes: int, name: str) -> bytes | None:
        if value is not None and len(value) != size_bytes:
            raise StoreFailed(f"{self._name}: {name} has {len(value)} bytes, not {size_bytes}; {ADVICE[name]}")
        return value
