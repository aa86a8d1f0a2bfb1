"""A member that repeats itself: what it adds to the journal is bounded, and it hears when to ask again."""

import asyncio
import time
from dataclasses import replace

import pytest

from epochal.coordinator.auth import request_rates as rates
from epochal.coordinator.auth.request_rates import JOINS, REPORTS
from epochal.coordinator_client.session import ClientProfile, CoordinatorSession
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import Refused
from epochal.state.messages.requests import CheckpointReport, ReadyReport
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import WireClient, phase, problem, served_over_sockets
from tests.support.simulate.simulated_client import key_of
from tests.support.simulate.simulated_network import no_faults
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

ADDRESS = "192.0.2.1"
HOUR_S = 3600.0
MAX_BYTES_AN_HOUR = 1_000_000


def hourly_bytes(grown_bytes: int, count: int, period_s: float) -> float:
    """Return what a member adds in an hour with messages of which the burst of `count` added `grown_bytes`."""
    return grown_bytes / count * (count + HOUR_S / period_s)


@pytest.mark.nightly
async def test_member_that_changes_its_claim_again_and_again_adds_little(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, access__genesis="members") as run:
        chatty, honest = WireClient(run, 1), WireClient(run, 2)
        for client in (chatty, honest):
            await client.join()
        await phase(run, RunState.WARMUP)
        before = run.insight.status().journal_bytes
        kinds, started_s = [], time.monotonic()
        for number in range(3 * REPORTS.at_once):
            claim = CheckpointReport(0, Sha256(f"{number:064x}"), Sha256(f"{number:064x}"), number)
            answer = await chatty.send("POST", "/checkpoints", claim)
            kinds.append("" if answer.is_success else problem(answer))
            if answer.status_code == 429:
                assert 1 <= int(answer.headers["Retry-After"]) <= REPORTS.period_s
        assert kinds.count("rate-limited") == len(kinds) - kinds.count("")
        assert (
            REPORTS.at_once
            <= kinds.count("")
            <= REPORTS.at_once + (time.monotonic() - started_s) / REPORTS.period_s + 1
        )
        grown = run.insight.status().journal_bytes - before
        assert hourly_bytes(grown, kinds.count(""), REPORTS.period_s) < MAX_BYTES_AN_HOUR
        assert (await honest.send("POST", "/checkpoints", claim)).is_success


@pytest.mark.nightly
async def test_member_that_leaves_and_joins_again_and_again_adds_little(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, config__init_min_clients=5) as run:
        chatty, honest = WireClient(run, 1), WireClient(run, 2)
        before, started_s = run.insight.status().journal_bytes, time.monotonic()
        joined = 0
        kind = ""
        while not kind:
            try:
                await chatty.join()
            except Refused as refusal:
                kind = refusal.kind
            else:
                joined += 1
                await chatty.send("DELETE", "/clients/me")
        assert kind == "rate-limited"
        assert JOINS.at_once <= joined <= JOINS.at_once + (time.monotonic() - started_s) / JOINS.period_s + 1
        grown = run.insight.status().journal_bytes - before
        assert hourly_bytes(grown, joined, JOINS.period_s) < MAX_BYTES_AN_HOUR
        await honest.join()


async def test_address_that_joins_with_ever_new_keys_is_told_to_wait(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "JOINS_OF_ADDRESS", replace(rates.JOINS_OF_ADDRESS, at_once=3))
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, config__init_min_clients=5) as run:
        requests = [await WireClient(run, number).join_request() for number in range(4)]
        for request in requests[:3]:
            await run.handlers.join(request, ADDRESS)
        with pytest.raises(Refused, match="in a short time") as refused:
            await run.handlers.join(requests[3], ADDRESS)
        assert refused.value.kind == "rate-limited"
        assert len(run.service.run.members) == 3
        again = await WireClient(run, 0).join_request()
        assert await run.handlers.join(again, ADDRESS), "a member that comes back is none too many"


@in_virtual_time
async def test_client_obeys_the_time_that_it_is_told_to_wait() -> None:
    policy = RetryPolicy(VirtualClock(), lambda: 0.5, bound_s=60)
    async with simulated_run(state_file(config__client_timeout_s=100_000), seed=0) as run:
        session = CoordinatorSession(run.api(no_faults)[0], ClientProfile(key_of(1)), policy, lambda _: None)
        await session.join()
        for _ in range(REPORTS.at_once):
            run.coordinator.handlers().check_rate(session.client_id)
        started_s = policy.clock.monotonic_s()
        with pytest.raises(Refused) as refused:
            await session.report(ReadyReport(0, Sha256("a" * 64), "data"))
        assert refused.value.kind == "replica-differs"
        assert policy.clock.monotonic_s() - started_s == pytest.approx(REPORTS.period_s, abs=1)
