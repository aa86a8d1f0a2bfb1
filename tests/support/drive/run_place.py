"""The place in which a test keeps its run: a folder, or a database with the blobs in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.serve import ServeOptions
from epochal.runtime.http.http_server import Endpoint
from tests.support.data import stored_rows
from tests.support.servers.postgres_server import PostgresServer


@dataclass(frozen=True)
class RunPlace:
    """The place of a run.

    Attributes:
        folder: for all files of the run.
        server: has the run's database; None for a run in the folder.
        database: URL of that database.
    """

    folder: Path
    server: PostgresServer | None = None
    database: str = ""

    @classmethod
    def at(cls, place: "Path | RunPlace") -> "RunPlace":
        """Return a place, which may be named by its folder."""
        return cls(place) if isinstance(place, Path) else place

    @property
    def blobs(self) -> Path | None:
        """The folder of the blobs of a run in a database."""
        return self.folder / "blobs" if self.database else None

    def store(self, run_dir: Path) -> str:
        """Return the run's store, which is this run directory unless the run is in a database."""
        return self.database or str(run_dir)

    def serve_options(self, **options: Any) -> ServeOptions:
        """Return options by which a coordinator in this process serves the run."""
        store = self.store(self.folder)
        return ServeOptions(store, Endpoint(port=0), blobs_folder=self.blobs, **options)

    def execute(self, run_dir: Path, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement on the run's rows, and return the rows found."""
        if self.server is None:
            return stored_rows.execute(run_dir, sql)
        return self.server.execute(sql, self.database)

    def flip(self, run_dir: Path, table: str, column: str, where: str) -> None:
        """Flip a bit in the middle of one value."""
        if self.server is None:
            stored_rows.flip(run_dir, table, column, where)
        else:
            middle = f"length({column}) / 2"
            changed = f"set_byte({column}, {middle}, get_byte({column}, {middle}) # 1)"
            self.server.execute(f"UPDATE {table} SET {column} = {changed} WHERE {where}", self.database)


@pytest.fixture(params=("directory", "postgres"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> RunPlace:
    """Each place, in turn."""
    if request.param == "directory":
        return RunPlace(tmp_path)
    (tmp_path / "blobs").mkdir()
    server: PostgresServer = request.getfixturevalue("database_server")
    return RunPlace(tmp_path, server, server.new_database())
