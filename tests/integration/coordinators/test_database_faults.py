"""Coordinators of one run whose database fails in every way but one: real servers, real processes, real clients.

The way that is left, a failover, is in `test_database_failover.py`. Clocks that differ, leases for all and slow answers
are simulated (`tests/simulation/test_three_replicas.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from epochal.cli.output.printing import LISTENING
from epochal.coordinator.api.request_parts import STALE_HEADER
from tests.support.drive.processes import in_training, prepared_run
from tests.support.drive.replicas import Surroundings, replicated_run
from tests.support.servers.database_relay import database_relay
from tests.support.servers.postgres_server import PostgresServer, postgres_server

UNHEARD_S = 12.0
"""Maximum time after which a coordinator says that nothing comes from its database: a lease on a busy machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@dataclass
class OwnRole:
    """Databases on a server for a role without privileges."""

    server: PostgresServer
    database: str = ""
    role: str = ""

    def new_database(self) -> str:
        url = self.server.new_database()
        self.database = url.rpartition("/")[2]
        self.role = self.database.replace("runs", "role")
        self.server.execute(f"CREATE ROLE {self.role} LOGIN")
        self.server.execute(f"CREATE SCHEMA AUTHORIZATION {self.role}", url)
        return url.replace("//postgres@", f"//{self.role}@")


@contextlib.contextmanager
def read_only(own: OwnRole) -> Iterator[None]:
    """Let the database take no writes."""
    for value in ("= on", "= off"):
        own.server.execute(f"ALTER ROLE {own.role} SET default_transaction_read_only {value}")
        own.server.disconnect(own.database)
        if value == "= on":
            yield


@contextlib.contextmanager
def out_of_connections(own: OwnRole) -> Iterator[None]:
    """Let the database take no connections."""
    for limit in (0, -1):
        own.server.execute(f"ALTER ROLE {own.role} CONNECTION LIMIT {limit}")
        own.server.disconnect(own.database)
        if limit == 0:
            yield


@contextlib.contextmanager
def slow(own: OwnRole) -> Iterator[None]:
    """Let every statement that changes the run wait, for longer than its limit."""
    with psycopg.connect(own.server.url(own.database)) as connection:
        connection.execute(f"SELECT FROM {own.role}.epochal_runs FOR UPDATE")
        yield


@pytest.mark.nightly
async def test_coordinator_waits_at_its_start_for_a_database_that_is_down(
    tmp_path: Path, server: PostgresServer
) -> None:
    async with database_relay(server) as relay, prepared_run(tmp_path) as run:
        relay.is_cut = True
        place = ("--store", relay.before(server.new_database()), "--blobs", str(tmp_path))
        starting = ("coordinator", str(run.state_path), *place, "--port", "0")
        (await run.command(*starting, "--wait-for-store", "0")).expect(1)
        child = await run.children.start("coordinator", *starting)
        awaited = await run.until_logged(child, "store_awaited", while_answering=False)
        assert (awaited["within_s"], awaited["reason"].startswith("postgresql://")) == (60.0, True)
        relay.is_cut = False
        await run.line_of(child, LISTENING)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "said"),
    [(read_only, "read-only"), (out_of_connections, "too many connections"), (slow, "timeout")],
    ids=["read-only", "out of connections", "slow"],
)
async def test_run_holds_while_the_database_fails_and_goes_on(
    tmp_path: Path, server: PostgresServer, fault: Callable[[OwnRole], AbstractContextManager[None]], said: str
) -> None:
    own = OwnRole(server)
    async with replicated_run(tmp_path, own, config__total_steps=12) as replicas:
        run = replicas.run
        await run.start_client()
        await run.until(in_training(2))
        with fault(own):
            for replica in replicas.all:
                assert said in await replicas.ready(replica, is_ready=False)
                await replicas.refuses_messages(replica)
                answer = await replica.http.get(f"/v1/runs/{run.watch.api.run_id}/checkpoints/latest")
                assert (answer.status_code, answer.headers[STALE_HEADER]) == (200, "true")
        for replica in replicas.all:
            await replicas.ready(replica)
        assert (await run.finish()).rounds == 12
        assert await replicas.shown.void(run.store) == 0


@pytest.mark.nightly
async def test_replica_that_ticked_and_is_cut_off_is_replaced_and_returns(
    tmp_path: Path, server: PostgresServer
) -> None:
    async with database_relay(server) as relay:
        around = Surroundings({0: relay})
        async with replicated_run(tmp_path, server, 2, around, config__total_steps=40) as replicas:
            run, (cut_off, other) = replicas.run, replicas.all
            await run.start_client()
            await run.until(in_training(2))
            assert await replicas.ticking() is cut_off
            relay.flows.clear()
            began_s = asyncio.get_running_loop().time()
            assert "does not answer" in await replicas.ready(cut_off, is_ready=False)
            assert asyncio.get_running_loop().time() - began_s < UNHEARD_S
            await run.until_logged(other.child, "ticking_begun")
            before = run.watch.seen[-1].step
            await run.until(lambda document: document.step >= min(before + 2, 40))  # it may be at its end
            assert "ready" in await replicas.ready(other)
            relay.flows.set()
            await replicas.ready(cut_off)
            assert (await run.finish()).rounds == 40
