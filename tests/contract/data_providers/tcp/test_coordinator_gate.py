"""`CoordinatorGate`: tickets, rounds and outages, as a data server meets them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import httpx
import jwt
import pytest

import epochal.data_providers.tcp.coordinator_gate
from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S, SessionTokens
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.tcp.coordinator_gate import CLOCK_LEEWAY_S, CoordinatorGate
from epochal.state.assignment import assign_data_for_state, proven_ahead
from epochal.state.documents import Roster, RoundAhead, WorkList
from epochal.state.intervals import BatchId, DataIds
from epochal.state.messages.requests import VERIFIER_PREFIX
from epochal.state.wire import ClientId, Sha256
from tests.support.bounds import BOUND_S
from tests.support.data.documents import round_head
from tests.support.data.states import state_file
from tests.support.servers.data_coordinator import CLIENTS, PublishedRun
from tests.support.servers.data_http import http_server

RUN = "test-run"
BATCH = 3
WORK = (BatchId(0, 5), BatchId(100, 105))


@pytest.fixture
def run() -> PublishedRun:
    return PublishedRun(state_file(config__data_indices_per_batch=BATCH))


@contextmanager
def impatient() -> Iterator[None]:
    """Let the gate refuse after a moment what it must refuse; it waits for news as long as it takes elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochal.data_providers.tcp.coordinator_gate, "CATCH_UP_S", 0.05)
        yield


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.tcp.coordinator_gate, "CATCH_UP_S", BOUND_S)


@asynccontextmanager
async def following(run: PublishedRun) -> AsyncIterator[CoordinatorGate]:
    async with http_server(run) as url, httpx.AsyncClient(base_url=url) as http, asyncio.TaskGroup() as group:
        gate = CoordinatorGate(CoordinatorClient(http, RUN))
        task = group.create_task(gate.follow())
        yield gate
        task.cancel()


def data_of(client_id: ClientId, work: tuple[BatchId, ...] = WORK, step: int = 1) -> list[DataIds]:
    """The data indices that the round assigns the client, part by part."""
    roster = PublishedRun(state_file()).roster
    parts = assign_data_for_state(roster, WorkList((), work), round_head(step).assignment_seed)[client_id]
    return [part.to_data_ids(BATCH) for part in parts]


async def test_gate_admits_the_ticket_that_the_coordinator_signed(run: PublishedRun) -> None:
    async with following(run) as gate:
        assert await gate.admit(RUN, run.tokens.data_ticket(CLIENTS[1], time.time())) == CLIENTS[1]


async def test_gate_admits_a_ticket_at_the_edge_of_two_clocks(run: PublishedRun) -> None:
    async with following(run) as gate:
        early_s = time.time() - SESSION_LIFETIME_S - CLOCK_LEEWAY_S / 2
        assert await gate.admit(RUN, run.tokens.data_ticket(CLIENTS[1], early_s)) == CLIENTS[1]


def bad_tickets() -> dict[str, tuple[str, str]]:
    key = SigningKey(bytes(range(32)))
    ours = SessionTokens(key, RUN)
    client = CLIENTS[0]
    claims = {"sub": client, "run": RUN, "aud": "epochal-data", "exp": int(time.time()) + 100}
    return {
        "nothing": (RUN, ""),
        "nonsense": (RUN, "a.b.c"),
        "another coordinator's": (RUN, SessionTokens(SigningKey(bytes(32)), RUN).data_ticket(client, time.time())),
        "a session token": (RUN, ours.session_token(client, 1, time.time())),
        "expired": (RUN, ours.data_ticket(client, time.time() - SESSION_LIFETIME_S - 2 * CLOCK_LEEWAY_S)),
        "for another run": (RUN, SessionTokens(key, "other").data_ticket(client, time.time())),
        "shown for another run": ("other", ours.data_ticket(client, time.time())),
        "not signed": (RUN, jwt.encode(claims, "", algorithm="none")),
        "signed with the public key": (RUN, jwt.encode(claims, bytes.fromhex(key.public_key_hex), algorithm="HS256")),
        "without a client": (RUN, key.sign(claims | {"sub": 3})),
    }


@pytest.mark.parametrize("name", bad_tickets())
async def test_gate_rejects_every_other_ticket(name: str, run: PublishedRun) -> None:
    run_id, ticket = bad_tickets()[name]
    async with following(run) as gate:
        with pytest.raises(Rejected):
            await gate.admit(run_id, ticket)


async def test_gate_allows_what_the_provisional_round_assigns_until_it_changes(run: PublishedRun) -> None:
    client_id, first, second = CLIENTS[0], (BatchId(200, 211),), (BatchId(500, 511),)
    run.publish(1, WORK, ahead=run.ahead(first))
    (part, changed), (others, _) = (
        [
            proven_ahead(run.roster, WorkList((), work), round_head(1).seed)[of][0].to_data_ids(BATCH)
            for work in (first, second)
        ]
        for of in CLIENTS[:2]
    )
    async with following(run) as gate:
        await gate.allow(client_id, part)
        for wrong in (others, DataIds(part.start, part.end + 1)):
            with impatient(), pytest.raises(Rejected, match="not assigned"):
                await gate.allow(client_id, wrong)
        for own in data_of(client_id):
            await gate.allow(client_id, own)
        run.publish(1, WORK, version=9, ahead=run.ahead(second))
        await gate.allow(client_id, changed)
        with impatient(), pytest.raises(Rejected, match="not assigned"):
            await gate.allow(client_id, part)


async def test_gate_allows_newcomers_nothing_ahead(run: PublishedRun) -> None:
    """Their turn follows from a seed that nobody knows yet."""
    run.roster = Roster(tuple(replace(entry, proven=entry.client_id != CLIENTS[2]) for entry in run.roster.clients))
    work = WorkList((), (BatchId(200, 211),))
    run.publish(1, WORK, ahead=run.ahead(work.shared))
    (last,) = assign_data_for_state(run.roster, work, round_head(1).seed)[CLIENTS[2]]
    async with following(run) as gate:
        for other in CLIENTS[:2]:
            await gate.allow(other, proven_ahead(run.roster, work, round_head(1).seed)[other][0].to_data_ids(BATCH))
        with impatient(), pytest.raises(Rejected, match="not assigned"):
            await gate.allow(CLIENTS[2], last.to_data_ids(BATCH))


async def test_gate_goes_on_without_the_documents_of_a_provisional_round(run: PublishedRun) -> None:
    missing = RoundAhead(Sha256("e" * 64), Sha256("f" * 64))
    run.publish(1, WORK, ahead=missing)
    async with following(run) as gate:
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0])[0])
        run.publish(2, WORK)
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0], step=2)[0])


async def test_gate_allows_a_client_what_it_is_assigned_and_no_more(run: PublishedRun) -> None:
    run.publish(1, WORK)
    async with following(run) as gate:
        for client_id in CLIENTS:
            for part in data_of(client_id):
                await gate.allow(client_id, part)
                await gate.allow(client_id, DataIds(part.end, part.end))
        first, second = CLIENTS[0], CLIENTS[1]
        part = data_of(first)[-1]
        for client_id, data_ids in [
            (first, DataIds(part.start, part.end + 1)),
            (first, data_of(second)[0]),
            (first, DataIds(0, 400)),
            (ClientId("f" * 32), part),
        ]:
            with impatient(), pytest.raises(Rejected, match="not assigned"):
                await gate.allow(client_id, data_ids)


async def test_gate_lets_a_verifier_read_everything_and_nobody_else(run: PublishedRun) -> None:
    run.publish(1, WORK)
    ticket = run.tokens.data_ticket(f"{VERIFIER_PREFIX}ab", time.time())
    async with following(run) as gate:
        verifier = await gate.admit(RUN, ticket)
        await gate.allow(verifier, DataIds(700, 900))
        assert gate.is_in_rounds(verifier)
        with impatient(), pytest.raises(Rejected, match="not assigned"):
            await gate.allow(CLIENTS[0], DataIds(700, 900))


async def test_gate_knows_who_is_in_the_rounds(run: PublishedRun) -> None:
    run.publish(1, WORK)
    async with following(run) as gate:
        assert not gate.is_in_rounds(CLIENTS[0]), "before the first round was read"
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0])[0])
        assert all(gate.is_in_rounds(client_id) for client_id in CLIENTS)
        assert not gate.is_in_rounds(ClientId("f" * 32))


async def test_gate_waits_for_a_round_that_it_has_not_seen_yet(run: PublishedRun) -> None:
    later = (BatchId(200, 211),)
    async with following(run) as gate, asyncio.TaskGroup() as group, asyncio.timeout(BOUND_S):
        await gate.admit(RUN, run.tokens.data_ticket(CLIENTS[0], time.time()))
        asking = group.create_task(gate.allow(CLIENTS[0], data_of(CLIENTS[0], later)[0]))
        await asyncio.sleep(0)
        assert not asking.done()
        run.publish(1, later)
        await asking


async def test_gate_keeps_the_round_before_and_forgets_the_one_before_that(run: PublishedRun) -> None:
    client = CLIENTS[0]
    works = [(BatchId(12 * number, 12 * number + 11),) for number in range(3)]
    async with following(run) as gate:
        for number, work in enumerate(works):
            run.publish(number + 1, work)
            await gate.allow(client, data_of(client, work)[0])
        await gate.allow(client, data_of(client, works[1])[0])
        with impatient(), pytest.raises(Rejected):
            await gate.allow(client, data_of(client, works[0])[0])


async def test_gate_follows_a_run_restored_to_an_older_version(run: PublishedRun) -> None:
    run.publish(9, WORK)
    restored = (BatchId(50, 61),)
    async with following(run) as gate, asyncio.timeout(BOUND_S):
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0])[0])
        run.publish(2, restored, lineage="cd" * 8)
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0], restored)[0])


async def test_gate_without_its_coordinator_serves_what_it_knows(run: PublishedRun) -> None:
    run.publish(1, WORK)
    async with following(run) as gate:
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0])[0])
        run.away = True
        later = (BatchId(200, 211),)
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0])[0])
        async with asyncio.timeout(BOUND_S):
            while not gate.lag_s:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        with impatient(), pytest.raises(SourceUnavailable, match="cannot reach"):
            await gate.allow(CLIENTS[0], data_of(CLIENTS[0], later)[0])
        run.away = False
        run.publish(2, later)
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0], later)[0])


async def test_gate_that_never_heard_its_coordinator_is_unavailable(run: PublishedRun) -> None:
    run.away = True
    async with following(run) as gate:
        with impatient(), pytest.raises(SourceUnavailable):
            await gate.admit(RUN, run.tokens.data_ticket(CLIENTS[0], time.time()))
        with impatient(), pytest.raises(SourceUnavailable):
            await gate.allow(CLIENTS[0], DataIds(0, 0))


async def test_gate_does_not_believe_a_roster_of_another_digest(run: PublishedRun) -> None:
    run.publish(1, WORK)
    assert run.document.round is not None
    run.documents[run.document.round.roster_sha256] = {"clients": [{"client_id": CLIENTS[0], "share": 9}]}
    async with following(run) as gate:
        with impatient(), pytest.raises(SourceUnavailable):
            await gate.allow(CLIENTS[0], DataIds(0, 0))


async def test_gate_that_is_behind_waits_for_the_version_that_a_request_names(run: PublishedRun) -> None:
    run.publish(1, WORK)
    later = (BatchId(200, 205),)
    part = data_of(CLIENTS[0], later, step=2)[0]
    async with following(run) as gate, asyncio.TaskGroup() as group:
        asking = group.create_task(gate.allow(CLIENTS[0], part, 3))
        while gate.document_version != 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        assert not asking.done()
        run.publish(2, later)
        await asking


async def test_gate_that_stays_behind_a_request_is_unavailable(run: PublishedRun) -> None:
    run.publish(1, WORK)
    async with following(run) as gate:
        await gate.allow(CLIENTS[0], data_of(CLIENTS[0])[0], 2)
        with impatient(), pytest.raises(SourceUnavailable, match="behind: it follows version 2"):
            await gate.allow(CLIENTS[0], DataIds(600, 605), 7)
        with impatient(), pytest.raises(Rejected, match="not assigned"):
            await gate.allow(CLIENTS[0], DataIds(600, 605), 2)
