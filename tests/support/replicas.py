"""A run that several coordinators serve from one database, behind a balancer that gives each the next request."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from epochal.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.database_relay import DatabaseRelay
from tests.support.nginx import balancer
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer
from tests.support.processes import ADMIN_LINE, RealRun, prepared_run


@dataclass
class Replica:
    """One coordinator of a run, at its own address."""

    port: int
    child: Child
    http: httpx.AsyncClient

    def stop_for_now(self) -> None:
        """Let the process not go on (SIGSTOP)."""
        self.child.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the process go on."""
        self.child.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """End the process at once."""
        self.child.kill()
        assert await self.child.wait(BOUND_S) == -signal.SIGKILL


class Replicas:
    """The coordinators of a run. `run` has the balancer's address and the run's store."""

    def __init__(self, run: RealRun, ports: list[int], blobs: Path, stores: Mapping[int, str]) -> None:
        self.run = run
        self._stores = stores
        self.ports = ports
        self.all: list[Replica] = []
        self._blobs = blobs
        self._stack = contextlib.AsyncExitStack()
        self._starts = 0

    async def start(self, number: int, *arguments: str) -> Replica:
        """Start the coordinator of this number, again if it has ended; return when it serves the run."""
        port = self.ports[number]
        self._starts += 1
        place = ("--store", self._stores.get(number, self.run.store), "--blobs", str(self._blobs), "--port", str(port))
        name = f"replica-{number}-{self._starts}"
        child, address = await self.run.start_server(name, "coordinator", str(self.run.state_path), *place, *arguments)
        http = await self._stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=BOUND_S))
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
    folder: Path,
    server: PostgresServer,
    count: int = 2,
    relays: Mapping[int, DatabaseRelay] | None = None,
    /,
    **overrides: Any,
) -> AsyncIterator[Replicas]:
    """Yield a run with this number of coordinators; clients reach each of them with every further request.

    Args:
        folder: for all files.
        server: the database's.
        count: number of coordinators.
        relays: those by which the coordinators of these numbers reach the database.
        overrides: replace fields of the state file.
    """
    blobs = folder / "blobs"
    blobs.mkdir()
    ports = [free_port() for _ in range(count)]
    async with prepared_run(folder, **overrides) as run:
        run.store = server.new_database()
        name = run.store.rpartition("/")[2]
        stores = {number: relay.url(server, name) for number, relay in (relays or {}).items()}
        replicas = Replicas(run, ports, blobs, stores)
        try:
            for number in range(count):
                await replicas.start(number)
            with balancer(folder / "nginx", ports) as before:
                await run.reach(before.url)
                yield replicas
        finally:
            await replicas.aclose()
