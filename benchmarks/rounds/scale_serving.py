"""The coordinators of one measured run: one process on files, or some over a database; and what they use."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from benchmarks.process_usage import cpu_s, memory_bytes
from benchmarks.servers import RUN_ID, coordinator_of
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.tools.testnet.child_processes import Child, Children
from tests.support.servers.postgres_server import PostgresServer

CONFLICT = b'"commit_conflict"'


@dataclass(frozen=True, slots=True)
class Used:
    """What a run has used so far.

    Attributes:
        cpu_s: processor time of all coordinators, in seconds.
        database_cpu_s: that of the database's server.
        journal_bytes: size of the journal.
        wal_bytes: what the database's server has written ahead, of everything.
        memory_bytes: resident memory of the largest coordinator.
        conflicts: groups of messages that a coordinator had to handle again, because another one appended first.
    """

    cpu_s: float
    database_cpu_s: float
    journal_bytes: int
    wal_bytes: int
    memory_bytes: int
    conflicts: int


class Kept(Protocol):
    """Where a run is kept."""

    def journal_bytes(self) -> int:
        """Return the size of the journal."""

    def wal_bytes(self) -> int:
        """Return what a database has written ahead."""

    def cpu_s(self) -> float:
        """Return a database's processor time, in seconds."""


@dataclass(frozen=True, slots=True)
class InFiles:
    """A run directory."""

    run_dir: Path

    def journal_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.run_dir.glob(f"{DATABASE_FILE}*"))

    def wal_bytes(self) -> int:
        return 0

    def cpu_s(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class InDatabase:
    """A database of a server, with one run in it."""

    server: PostgresServer
    url: str

    def journal_bytes(self) -> int:
        return int(self.server.execute("SELECT journal_bytes FROM epochal_runs", self.url)[0][0])

    def wal_bytes(self) -> int:
        return int(self.server.execute("SELECT pg_current_wal_insert_lsn() - '0/0'", self.url)[0][0])

    def cpu_s(self) -> float:
        return cpu_s(self.server.pid)


@dataclass(frozen=True, slots=True)
class Serving:
    """Coordinators that serve one run, each at its address.

    Attributes:
        children: starts clients beside them.
        store: what a reader of the run opens.
        command: the arguments that start one of them, but for its port.
    """

    coordinators: list[Child]
    urls: tuple[str, ...]
    children: Children
    store: str
    kept: Kept
    command: tuple[str, ...] = ()

    async def start_again(self, number: int) -> None:
        """Start a coordinator that has ended, at its address. Raise `EpochalError` if it does not start."""
        port = str(urlsplit(self.urls[number]).port)
        name = f"coordinator-{number}-{len(self.children.started)}"
        self.coordinators[number], _ = await self.children.start_server(name, *self.command, "--port", port)

    def used(self) -> Used:
        """Return what they have used so far."""
        pids = [child.process.pid for child in self.coordinators]
        return Used(
            cpu_s=sum(map(cpu_s, pids)),
            database_cpu_s=self.kept.cpu_s(),
            journal_bytes=self.kept.journal_bytes(),
            wal_bytes=self.kept.wal_bytes(),
            memory_bytes=max(memory_bytes("VmRSS", pid) for pid in pids),
            conflicts=sum(child.log_path.read_bytes().count(CONFLICT) for child in self.coordinators),
        )


@contextlib.asynccontextmanager
async def serving(
    state: str, folder: Path, server: PostgresServer | None = None, count: int = 1
) -> AsyncIterator[Serving]:
    """Serve a new run of this state file.

    Args:
        state: the state file.
        folder: an empty one, for all files.
        server: keeps the run in a new database; None for files in the folder.
        count: number of coordinators; more than one needs a database.

    Raises:
        EpochalError: one does not start.
    """
    if server is None:
        async with coordinator_of(state, folder) as process:
            kept = InFiles(process.run_dir)
            yield Serving([process.child], (process.url,), process.children, str(process.run_dir), kept)
        return
    url, blobs, state_path = server.new_database(), folder / "blobs", folder / "state.toml"
    blobs.mkdir()
    state_path.write_text(state, encoding="utf-8")
    command = ("coordinator", str(state_path), "--store", url, "--blobs", str(blobs))
    async with Children(folder / "logs") as children:
        started = [
            await children.start_server(f"coordinator-{number}", *command, "--port", "0") for number in range(count)
        ]
        coordinators, urls = [child for child, _ in started], tuple(address for _, address in started)
        yield Serving(coordinators, urls, children, f"{url}?run={RUN_ID}", InDatabase(server, url), command)
