"""Two coordinators of one run over HTTP, of which the second is told of nothing: its answers are not older for that."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from epochal.coordinator.api.request_parts import STALE_HEADER
from epochal.state.errors import StoreBlocked
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.drive.served import ADMIN, Served, WireClient, phase, problem, served
from tests.support.simulate.memory_store import MemoryBlobs, MemoryDatabase, MemoryJournal, MemoryMeetings, MemoryStore
from tests.support.simulate.poor_replication import PoorReplication

LIMIT = 10_000_000
UNKNOWN = "0" * 64


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Served, Served]]:
    """Two coordinators of one run."""
    database, meetings = MemoryDatabase(), MemoryMeetings()
    state = state_file(config__waiting_for_members_extra_time=0.001)
    files = MemoryBlobs(LIMIT)
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            store = MemoryStore(0, MemoryJournal(database), bytes(range(32)), files)
            store.replication = PoorReplication(meetings, database)
            found.append(await stack.enter_async_context(served(state, store=store)))
        await found[0].service.replicas.meet()
        yield found[0], found[1]


async def asks(client: WireClient, place: Served, path: str) -> httpx.Response:
    """Return what a member is answered that asks another coordinator than the one that it has joined at."""
    assert client.token is not None
    return await WireClient(place, 1).send("GET", path, token=client.token)


def cut_off(place: Served) -> Any:
    """Let a coordinator reach its store no longer, and return its replication."""
    assert place.store is not None
    replication = place.store.replication
    assert isinstance(replication, PoorReplication)
    replication.problem = StoreBlocked("the database does not answer", is_full=False)
    place.service.note_failure(replication.problem)
    return replication


async def test_member_is_known_wherever_it_asks_next(pair: tuple[Served, Served]) -> None:
    one, other = pair
    client = WireClient(one, 1)
    await client.join()
    for path in ("/clients/me", "?wait_s=0"):
        assert (await asks(client, other, path)).status_code == 200


async def test_document_that_one_coordinator_names_is_read_at_another(pair: tuple[Served, Served]) -> None:
    one, other = pair
    clients = [WireClient(one, number) for number in (1, 2)]
    for client in clients:
        await client.join()
    await phase(one, RunState.WARMUP)
    status = (await asks(clients[0], other, "/status")).json()
    assert status["run_state"] == RunState.WARMUP.value


@pytest.mark.nightly
async def test_coordinator_without_its_store_says_nothing_that_may_be_wrong(pair: tuple[Served, Served]) -> None:
    one, other = pair
    client = WireClient(other, 1)
    await client.join()
    newcomer = WireClient(one, 2)
    await newcomer.join()
    cut_off(other)
    known = await client.send("GET", "/clients/me")
    assert (known.status_code, known.headers[STALE_HEADER]) == (200, "true")
    document = await other.http.get(other.run_url)
    assert (document.status_code, document.headers[STALE_HEADER]) == (200, "true")
    same = await other.http.get(other.run_url, headers={"If-None-Match": document.headers["etag"]})
    assert (same.status_code, same.headers[STALE_HEADER]) == (304, "true")
    assert STALE_HEADER not in (await one.http.get(one.run_url)).headers
    for answer in (
        await asks(newcomer, other, "/clients/me"),
        await client.send("GET", f"/rosters/{UNKNOWN}"),
        await client.send("POST", "/pause", token=ADMIN),
        await client.send("DELETE", "/clients/me"),
    ):
        assert problem(answer) == "store-failed"
        assert answer.headers["retry-after"]
        assert STALE_HEADER not in answer.headers
    assert (await other.http.get("/readyz")).status_code == 503
    assert (await other.http.get("/healthz")).status_code == 200
    assert problem(await client.send("GET", f"/rosters/{UNKNOWN}", token=None)) == "store-failed"


async def test_session_and_admin_tokens_hold_at_every_coordinator(pair: tuple[Served, Served]) -> None:
    one, other = pair
    for number, (joined, asked) in enumerate(((one, other), (other, one)), 1):
        client = WireClient(joined, number)
        await client.join()
        for place in (joined, asked):
            assert (await asks(client, place, "/clients/me")).status_code == 200
            for action in ("pause", "resume"):
                assert (await client.send("POST", f"/{action}", token="wrong")).status_code == 403
                answer = await WireClient(place, number).send("POST", f"/{action}", token=ADMIN)
                assert answer.status_code == 204
