"""A run that several coordinators serve from one database, behind a balancer that gives each the next request."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from epochal.cli.output.printing import LISTENING
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import replay, replay_tail
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator_client.api import DocumentMark
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.wire import Sha256, document_digest
from epochal.tools.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import ADMIN_LINE, RealRun, prepared_run
from tests.support.servers.database_relay import DatabaseRelay
from tests.support.servers.nginx import balancer
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port

WAIT_S = 2.0
AGAIN_S = 0.1


@dataclass
class ShownDocuments:
    """Digests of every document that readers were shown, to compare with the journal: none may be taken back.

    Attributes:
        digests: by lineage and version.
        lineages: in the order in which they were shown first.
    """

    digests: dict[tuple[str, int], Sha256] = field(default_factory=dict)
    lineages: list[str] = field(default_factory=list)

    def add(self, document: RunDocument) -> None:
        """Take note of a document; two of one version must be one."""
        digest = document_digest(document)
        assert self.digests.setdefault((document.lineage, document.version), digest) == digest, document
        if document.lineage not in self.lineages:
            self.lineages.append(document.lineage)

    async def follow(self, address: str) -> None:
        """Read what a coordinator shows, until cancelled; it may be away for a while."""
        api = await CoordinatorClient.connect(address, RetryPolicy(bound_s=BOUND_S), True)
        mark: DocumentMark | None = None
        try:
            while True:
                try:
                    document = await api.run_document(mark, WAIT_S)
                except (CoordinatorUnreachable, Refused):
                    await asyncio.sleep(AGAIN_S)
                    continue
                if document is not None:
                    is_newer = mark is None or mark.lineage != document.lineage or mark.version < document.version
                    assert is_newer, f"{address} showed version {document.version} after {mark}"
                    self.add(document)
                    mark = DocumentMark(document.lineage, document.version)
        finally:
            await api.aclose()

    async def void(self, store: str) -> int:
        """Return the number of documents that the journal does not keep; only those that a new lineage has disowned.

        Raises:
            AssertionError: one that is not kept was not disowned, or the journal keeps another of its version.
        """
        kept: dict[tuple[str, int], Sha256] = {}
        last: dict[str, int] = {}
        async for segment in open_store_reader(store).journal.history():
            found = replay(Segment(segment.number, segment.snapshot, ()))
            for record in (None, *segment.records):
                found = found if record is None else replay_tail(found, (record,))
                document = found.document
                kept[document.lineage, document.version] = document_digest(document)
                last[document.lineage] = document.version
        first, newest, void = next(iter(kept)), list(last)[-1], 0
        for (lineage, version), digest in self.digests.items():
            if (lineage, version) in kept:
                assert kept[lineage, version] == digest, f"another document of version {version} is kept"
            elif lineage != first[0] or version > first[1]:
                assert lineage != newest, f"version {version} was shown and is not kept"
                assert version > last.get(lineage, 0), f"version {version} was shown, and passed over"
                void += 1
        return void


class Databases(Protocol):
    """A server, or several, on which runs have databases."""

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of a run's coordinators, each named by its number.

    Attributes:
        relays: those by which they reach the database.
    """

    relays: Mapping[int, DatabaseRelay] = field(default_factory=dict)


@dataclass
class Replica:
    """One coordinator of a run, at its own address."""

    port: int
    child: Child
    http: httpx.AsyncClient

    async def kill(self) -> None:
        """End the process at once."""
        self.child.kill()
        assert await self.child.wait(BOUND_S) == -signal.SIGKILL


class Replicas:
    """The coordinators of a run. `run` has the balancer's address and the run's store.

    Attributes:
        shown: every document that one of them has shown.
    """

    def __init__(self, run: RealRun, ports: list[int], blobs: Path, around: Surroundings) -> None:
        self.run = run
        self._around = around
        self.ports = ports
        self.all: list[Replica] = []
        self.shown = ShownDocuments()
        self.blobs = blobs
        self._stack = contextlib.AsyncExitStack()
        self._starts = 0

    async def start(self, number: int, *arguments: str) -> Replica:
        """Start the coordinator of this number, again if it has ended; return when it serves the run."""
        port, run = self.ports[number], self.run
        self._starts += 1
        store, relay = run.store, self._around.relays.get(number)
        place = ("--store", store if relay is None else relay.before(store), "--blobs", str(self.blobs))
        child = await run.children.start(
            f"replica-{number}-{self._starts}",
            *("coordinator", str(run.state_path), *place, "--port", str(port), *arguments),
        )
        address = (await run.line_of(child, LISTENING)).partition(LISTENING)[2].split()[0]
        http = await self._stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=BOUND_S, verify=PLAIN))
        replica = Replica(port, child, http)
        self.all[number : number + 1] = [replica]
        return replica

    async def ticking(self) -> Replica:
        """Return the coordinator that was the last to begin to tick, of those that live."""
        living = [replica for replica in self.all if replica.child.process.returncode is None]
        begun = {
            replica.port: [line["time_s"] for line in self.run.events(replica.child, "ticking_begun")]
            for replica in living
        }
        return max(living, key=lambda replica: max(begun[replica.port], default=0.0))

    async def ready(self, replica: Replica, *, is_ready: bool = True) -> str:
        """Return what `/readyz` says once it says that the coordinator is ready, or that it is not."""
        async with asyncio.timeout(BOUND_S):
            while True:
                answer = await replica.http.get("/readyz")
                if (answer.status_code == 200) is is_ready:
                    return answer.text

    async def refuses_messages(self, replica: Replica) -> None:
        """Assert that the coordinator takes no message, and asks for another attempt."""
        answer = await replica.http.post(f"/v1/runs/{self.run.watch.api.run_id}/pause")
        assert answer.status_code == 503, answer.text
        assert "retry-after" in answer.headers

    def admin_token(self) -> str:
        """Return the token that the first coordinator has printed."""
        (line,) = (line for line in self.run.printed if line.startswith(ADMIN_LINE))
        return line.removeprefix(ADMIN_LINE)

    async def aclose(self) -> None:
        for replica in self.all:
            replica.child.kill()
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def replicated_run(
    folder: Path, databases: Databases, count: int = 2, around: Surroundings | None = None, /, **overrides: Any
) -> AsyncIterator[Replicas]:
    """Yield a run with this number of coordinators; clients reach each of them with every further request.

    In the end it is checked that each document that a coordinator has shown is kept, or was disowned by a new lineage.

    Args:
        folder: for all files.
        databases: have the run.
        count: number of coordinators.
        around: surroundings of the coordinators.
        overrides: replace fields of the state file.
    """
    blobs = folder / "blobs"
    blobs.mkdir()
    ports = [free_port() for _ in range(count)]
    async with prepared_run(folder, **overrides) as run:
        run.store = databases.new_database()
        replicas = Replicas(run, ports, blobs, around or Surroundings())
        try:
            for number in range(count):
                await replicas.start(number)
            with balancer(folder / "nginx", ports) as before:
                await run.reach(before.url)
                async with asyncio.TaskGroup() as tasks:
                    urls = [str(replica.http.base_url) for replica in replicas.all]
                    readers = [tasks.create_task(replicas.shown.follow(url)) for url in urls]
                    yield replicas
                    for reader in readers:
                        reader.cancel()
            await replicas.shown.void(run.store)
        finally:
            await replicas.aclose()
