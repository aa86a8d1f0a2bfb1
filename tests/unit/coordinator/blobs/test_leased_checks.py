"""Leases of checks, in virtual time: who gets a check, and when the coordinator is to carry it out itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from epochal.coordinator.blobs.from_object_store import LeasedChecks
from epochal.coordinator.blobs.leases import GRACE_S, LEASE_S, MAX_LEASES, MIN_BYTES_PER_S, PRESENT_FOR_S
from epochal.state.errors import Refused
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict, ExpectedResult, LeasedCheck
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256
from tests.support.simulate.virtual_time import in_virtual_time

SHA256 = Sha256("a" * 64)
SIZE_BYTES = 10 * MIN_BYTES_PER_S
COMMITMENT = ResultCommitment(1, 0, SHA256, SIZE_BYTES, ResultMetrics(None, 0, 0.0))
CHECK = ExpectedResult("run", ClientId("b" * 32), COMMITMENT, SHA256, "int4", 1.0)
RIGHT = CheckVerdict(SHA256, 1.0)
WAIT_S = 10.0
Verdict = tuple[str | None, float]


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def url_of(_: ExpectedResult) -> tuple[str, float]:
    return f"http://store/{now_s():g}", 300.0


@pytest.fixture
def checks() -> LeasedChecks:
    return LeasedChecks(now_s, url_of)


async def verdict(checks: LeasedChecks, wait_s: float = WAIT_S) -> Verdict:
    """Who gave the verdict on `CHECK`, None for nobody, and when."""
    found = await checks.verdict_of_checker(CHECK, wait_s)
    return (None if found is None else found.checker), now_s()


@asynccontextmanager
async def leased_to_one(
    checks: LeasedChecks,
) -> AsyncIterator[tuple[LeasedCheck, asyncio.Task[tuple[str | None, float]]]]:
    """Yield the check that the checker `one` has got, and what waits for the verdict on it."""
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(checks.lease("one", 20.0))
        await checks.asked.wait()
        waiting = tasks.create_task(verdict(checks))
        leased = await asked
        assert leased is not None
        yield leased, waiting


@in_virtual_time
async def test_without_a_checker_nobody_waits(checks: LeasedChecks) -> None:
    assert await verdict(checks) == (None, 0.0)
    await checks.lease("one", 1.0)
    assert await verdict(checks, 0.0) == (None, 1.0)
    await asyncio.sleep(PRESENT_FOR_S + 1)
    assert await verdict(checks) == (None, PRESENT_FOR_S + 2)


@in_virtual_time
async def test_check_that_no_checker_takes_is_the_coordinators_after_a_while(checks: LeasedChecks) -> None:
    assert await checks.lease("one", 1.0) is None
    assert await verdict(checks) == (None, 1.0 + WAIT_S)


@in_virtual_time
async def test_waiting_checker_gets_a_check_at_once_and_its_verdict_counts(checks: LeasedChecks) -> None:
    async with leased_to_one(checks) as (leased, waiting):
        assert (leased.check, leased.expires_in_s) == (CHECK, LEASE_S)
        assert await checks.lease("two", 1.0) is None
        with pytest.raises(Refused) as refused:
            checks.report("two", leased.lease, RIGHT)
        assert refused.value.kind == "gone"
        checks.report("one", leased.lease, RIGHT)
        assert await waiting == ("one", 1.0)
    with pytest.raises(Refused):
        checks.report("one", leased.lease, RIGHT)


@in_virtual_time
async def test_check_whose_url_is_not_signed_goes_to_the_next_checker_at_once() -> None:
    refusals = [Refused(Refusal.STORE_FAILED, "no key")]

    async def signed(check: ExpectedResult) -> tuple[str, float]:
        if refusals:
            raise refusals.pop()
        return await url_of(check)

    checks = LeasedChecks(now_s, signed)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(refused_lease(checks))
        await checks.asked.wait()
        waiting = tasks.create_task(verdict(checks))
        await asked
        assert checks.waiting_count == 1
        leased = await checks.lease("two", 1.0)
        assert leased is not None
        checks.report("two", leased.lease, RIGHT)
        assert await waiting == ("two", 0.0)


async def refused_lease(checks: LeasedChecks) -> None:
    with pytest.raises(Refused, match="no key"):
        await checks.lease("one", 20.0)


@in_virtual_time
async def test_renewed_lease_goes_on_but_not_for_ever(checks: LeasedChecks) -> None:
    most_s = GRACE_S + SIZE_BYTES / MIN_BYTES_PER_S
    async with leased_to_one(checks) as (leased, waiting):
        renewed_s, is_over = 0.0, False
        while not is_over:
            await asyncio.sleep(LEASE_S / 2)
            try:
                assert (await checks.renew("one", leased.lease)).url == f"http://store/{now_s():g}"
                renewed_s = now_s()
            except Refused as refusal:
                is_over = refusal.kind == "gone"
        assert most_s - LEASE_S / 2 < renewed_s <= most_s
        assert await waiting == (None, renewed_s + LEASE_S + WAIT_S)


@in_virtual_time
async def test_check_of_dead_checkers_is_the_coordinators_at_last(checks: LeasedChecks) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(checks.lease(f"checker {number}", 200.0)) for number in range(MAX_LEASES)]
        await checks.asked.wait()
        assert await verdict(checks) == (None, MAX_LEASES * LEASE_S)
        assert len({(await one or pytest.fail("no lease")).lease for one in asked}) == MAX_LEASES


@in_virtual_time
async def test_check_that_is_given_back_goes_to_the_next_one_at_once(checks: LeasedChecks) -> None:
    async with leased_to_one(checks) as (first, waiting):
        checks.give_back("one", first.lease)
        second = await checks.lease("two", 1.0)
        assert second is not None
        checks.report("two", second.lease, RIGHT)
        assert await waiting == ("two", 0.0)


@in_virtual_time
async def test_verdict_that_contradicts_itself_is_refused(checks: LeasedChecks) -> None:
    async with leased_to_one(checks) as (leased, waiting):
        no_room, contradiction = CheckVerdict(rule=NO_ROOM), CheckVerdict(SHA256, 1.0, "scale")
        for wrong in (CheckVerdict(), contradiction, CheckVerdict(SHA256), no_room):
            with pytest.raises(Refused) as refused:
                checks.report("one", leased.lease, wrong)
            assert refused.value.kind == "invalid-body"
        checks.report("one", leased.lease, CheckVerdict(rule="scale", message="why"))
        assert (await waiting)[0] == "one"
