"""The progress of a preparation, stored in its folder so that it can be resumed after a kill.

One SQLite file holds the options, the sources as they were listed, the position in them, the counts, the lengths of the
shards and the digests of the documents that were seen. The rule kept here: all of it changes in one transaction, which
is committed only when the shards' bytes are on the disk; so what a shard has beyond its length here never happened.
"""

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from epochal.state.errors import EpochalError, InvalidInput

LEDGER_NAME = "ledger.sqlite"
CACHE_BYTES = 64 * 1024**2
"""Maximum number of bytes of the digests that are held in memory; the others are on the disk."""
_FORMAT = 1


class DoneSoFar:
    """The ledger of a preparation. Make one with `open`.

    Raises:
        InvalidInput: the file is damaged; from every method.
        EpochalError: the disk is full or fails; from every method. The preparation can continue later.
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the ledger of a folder; create it if it is missing."""
        path = folder / LEDGER_NAME
        try:
            database = sqlite3.connect(path, isolation_level=None)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")  # so that no memory is shared, which NFS cannot do
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute(f"PRAGMA cache_size=-{CACHE_BYTES // 1024}")
            database.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT)")
            database.execute("CREATE TABLE IF NOT EXISTS seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
            found = cls(path, database)
            found.begin()
            if found.fact("format") not in (None, _FORMAT):
                raise InvalidInput(f"{path} is of another version of epochal; --restart starts over", path=str(path))
            found.note("format", _FORMAT)
        except sqlite3.Error as error:
            raise _failed(path, error) from error
        return found

    def begin(self) -> None:
        """Begin what the next `commit` makes durable."""
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make everything that was noted durable, and clear the notes."""
        self._execute("COMMIT")
        self.begin()

    def note(self, name: str, value: Any) -> None:
        """Note a fact: a plain JSON value."""
        self._execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def fact(self, name: str) -> Any:
        """Return what was noted; None if nothing was."""
        row = self._execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def facts(self, prefix: str) -> Mapping[str, Any]:
        """Return everything that was noted under names with this prefix, which they lose, sorted by name."""
        rows = self._execute("SELECT name, value FROM facts WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))
        return {name[len(prefix) :]: json.loads(value) for name, value in sorted(rows)}

    def is_new(self, digest: bytes) -> bool:
        """Note a document's digest; return whether it was not there before."""
        return self._execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 1

    def close(self) -> None:
        """Close the file; what was not committed never happened."""
        self._database.close()

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error


def _failed(path: Path, error: sqlite3.Error) -> EpochalError:
    if isinstance(error, sqlite3.OperationalError):  # of the disk
        message = f"{path} cannot be read or written: {error}; the same command resumes where this one stopped"
        return EpochalError(message, path=str(path))
    return InvalidInput(f"{path}: {error}; --restart starts over", path=str(path))
