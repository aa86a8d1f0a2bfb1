"""A run that several coordinators serve from one PostgreSQL database, with real clients behind a balancer."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest

from epochal.state.messages.deliveries import MEDIA_TYPE, encoded_delivery
from tests.support.data.spooled import fetched
from tests.support.drive.by_hand import joined_by_hand
from tests.support.drive.processes import RealRun, at_round, in_training
from tests.support.drive.replicas import Replica, Replicas, Surroundings, replicated_run
from tests.support.servers.database_relay import DatabaseRelay, database_relay
from tests.support.servers.postgres_server import PostgresServer, postgres_server
from tests.support.thinned import thinned

CLIENT_TIMEOUT_S = 6.0
STOPPED_S = 8.0
"""Longer than the lease, and than a member may be silent."""
RETRY_HEADER = "retry-after"
APPEND_WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity
  WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE epochal_runs%')
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


async def goes_on(run: RealRun) -> None:
    """Return when the run has come two steps further."""
    await run.until(in_training(run.watch.seen[-1].step + 2))


@pytest.mark.nightly
async def test_clients_whose_requests_reach_each_replica_finish_the_run(tmp_path: Path, server: PostgresServer) -> None:
    async with replicated_run(tmp_path, server, 3, config__init_min_clients=2, config__total_steps=6) as replicas:
        run = replicas.run
        for _ in range(2):
            await run.start_client()
        await run.until(in_training(2))
        assert (await run.finish()).rounds == 6


@pytest.mark.nightly
async def test_run_waits_for_its_database_and_goes_on_with_it(tmp_path: Path, server: PostgresServer) -> None:
    async with replicated_run(tmp_path, server, 2, config__total_steps=40) as replicas:
        run = replicas.run
        await run.start_client()
        await run.until(in_training(2))
        server.pause()
        for replica in replicas.all:
            assert "does not answer" in await replicas.ready(replica, is_ready=False)
        server.go_on()
        for replica in replicas.all:
            await replicas.ready(replica)
        await goes_on(run)
        server.kill()
        for replica in replicas.all:
            assert "goes on by itself" in await replicas.ready(replica, is_ready=False)
            await replicas.refuses_messages(replica)
        server.start()
        for replica in replicas.all:
            await replicas.ready(replica)
        assert (await run.finish()).rounds == 40


@dataclass
class Scene:
    """A replica that is asked for something; its database is reached by way of a relay."""

    asked: Replica
    replicas: Replicas
    relay: DatabaseRelay
    server: PostgresServer
    shown: Callable[[], Coroutine[None, None, None]]
    """Returns once another replica shows what was asked for."""


async def before_its_transaction(scene: Scene) -> None:
    scene.relay.held = 1
    await scene.relay.arrived.wait()
    await scene.asked.kill()


async def while_its_transaction_waits(scene: Scene) -> None:
    with psycopg.connect(scene.replicas.run.store) as connection:
        connection.execute("SELECT FROM epochal_runs FOR UPDATE")
        await asyncio.to_thread(scene.server.until, APPEND_WAITS)
        await scene.asked.kill()


async def after_its_transaction(scene: Scene) -> None:
    scene.relay.unanswered = 1
    await scene.relay.arrived.wait()
    await scene.asked.kill()


async def when_its_answer_arrives(scene: Scene) -> None:
    scene.relay.watched = 1
    await scene.relay.arrived.wait()
    await scene.asked.kill()


async def when_others_show_it(scene: Scene) -> None:
    await scene.shown()
    await scene.asked.kill()


POINTS = (
    before_its_transaction,
    while_its_transaction_waits,
    after_its_transaction,
    when_its_answer_arrives,
    when_others_show_it,
)


@pytest.mark.nightly
@thinned("killed_at", POINTS, kept=1)
async def test_result_whose_replica_is_killed_is_there_whole_or_not(
    tmp_path: Path, server: PostgresServer, killed_at: Callable[[Scene], Coroutine[None, None, None]]
) -> None:
    async with (
        database_relay(server) as relay,
        replicated_run(
            tmp_path, server, 2, Surroundings({0: relay}), config__max_round_train_time=120, config__client_timeout_s=60
        ) as replicas,
    ):
        killed, other = replicas.all
        replicas.run.url = str(other.http.base_url).rstrip("/")
        async with joined_by_hand(replicas.run, 1) as hand:
            await hand.be_ready()
            document = await hand.watch.until(at_round(1))
            data, bound = await hand.result(document)
            place = f"/v1/runs/{replicas.run.watch.api.run_id}/deliveries"
            headers = {"Authorization": hand.api._headers["Authorization"], "Content-Type": MEDIA_TYPE}

            async def ask() -> None:
                with contextlib.suppress(httpx.TransportError):
                    await killed.http.post(place, content=encoded_delivery(bound, data), headers=headers)

            async def shown() -> None:
                await hand.results_in(document, 1)

            async with asyncio.TaskGroup() as tasks:
                at_its_point = tasks.create_task(killed_at(Scene(killed, replicas, relay, server, shown)))
                tasks.create_task(ask())
                await at_its_point
            if killed_at is not before_its_transaction:
                await shown()
                assert await fetched(hand.api, bound.result_sha256) == data
            assert (await hand.api.send_result(bound, data)).result_verified
            assert await hand.results_in(document) == (hand.client_id,)
            assert await fetched(hand.api, bound.result_sha256) == data
