"""Leases of replays, in virtual time: which verifier computes which result again."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from epochal.coordinator.blobs.leased_replays import LeasedReplays
from epochal.coordinator.blobs.leases import LEASE_S, PRESENT_FOR_S
from epochal.coordinator.machine.parts.verification import MAX_VERIFIERS, OpenReplay, Reported, Verification
from epochal.state.errors import Refused
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import LeasedReplay, ReplayReport
from epochal.state.refusals import Refusal
from epochal.state.wire import Blake3, ClientId, Sha256
from tests.support.simulate.virtual_time import in_virtual_time


def now_s() -> float:
    return asyncio.get_running_loop().time()


def replay_of(step: int, **fields: object) -> OpenReplay:
    client_id, sha256 = ClientId(f"{step:032x}"), Sha256(f"{step:064x}")
    found = OpenReplay(step, 0, client_id, (BatchId(0, 3),), sha256, sha256, 100, Blake3(f"{step:064x}"), "drawn")
    return replace(found, **fields)  # type: ignore[arg-type]


def reported_by(replay: OpenReplay, verifier: str, excess: float) -> OpenReplay:
    classes = "float32/cpu", "bf16/cpu"
    report = ReplayReport(replay.step, replay.client_id, replay.result_sha256, excess, 1.0, 1.0, *classes, 5)
    return replace(replay, reports=(*replay.reports, Reported(verifier, report, 0.1)))


class Run:
    """The replays that a run waits for."""

    def __init__(self, *replays: OpenReplay) -> None:
        self.open = list(replays)
        self.replays = LeasedReplays(now_s, self.due)

    def due(self, verifier: str) -> Iterator[OpenReplay]:
        return Verification({one.key: one for one in self.open}).due(verifier, 10, 8)

    async def lease(self, verifier: str, wait_s: float = 0.0) -> LeasedReplay | None:
        return await self.replays.lease(verifier, wait_s)

    async def leased_step(self, verifier: str, wait_s: float = 0.0) -> int | None:
        found = await self.lease(verifier, wait_s)
        return None if found is None else found.step


def refused(found: pytest.ExceptionInfo[Refused]) -> Refusal:
    return found.value.kind


@in_virtual_time
async def test_disputed_goes_first_then_the_newest_and_each_to_one_verifier_only() -> None:
    run = Run(reported_by(replay_of(3), "three", excess=1.0), replay_of(5), replay_of(6), replay_of(7))
    found = [await run.leased_step(name) for name in ("one", "one", "two", "one", "two", "one", "two")]
    assert found == [3, 7, 3, 6, 5, None, None]
    assert run.replays.verifier_count == 2


@in_virtual_time
async def test_who_waits_gets_what_is_drawn_meanwhile() -> None:
    run = Run()
    waiting = asyncio.create_task(run.leased_step("one", 15.0))
    await asyncio.sleep(4)
    run.open.append(replay_of(3))
    run.replays.offer()
    assert (await waiting, now_s()) == (3, 4.0)
    assert await run.leased_step("two", 15.0) is None
    assert now_s() == 19.0


@in_virtual_time
async def test_work_of_a_dead_verifier_goes_to_another_after_its_lease() -> None:
    run = Run(replay_of(3))
    for _ in range(5):
        assert await run.leased_step("one") == 3
        await asyncio.sleep(LEASE_S)
    assert await run.leased_step("two") == 3
    assert await run.leased_step("one") is None


@in_virtual_time
async def test_lease_is_renewed_for_as_long_as_the_replay_is_open() -> None:
    run = Run(replay_of(3))
    leased = await run.lease("one")
    assert leased is not None
    for _ in range(400):
        await asyncio.sleep(LEASE_S / 2)
        assert run.replays.renew("one", leased.lease).lease == leased.lease
    with pytest.raises(Refused) as other:
        run.replays.renew("two", leased.lease)
    run.open.clear()
    with pytest.raises(Refused) as dropped:
        run.replays.renew("one", leased.lease)
    assert {refused(other), refused(dropped)} == {Refusal.GONE}


@in_virtual_time
async def test_what_is_given_back_goes_to_who_waits() -> None:
    run = Run(replay_of(3))
    leased = await run.lease("one")
    assert leased is not None
    waiting = asyncio.create_task(run.leased_step("two", 15.0))
    await asyncio.sleep(1)
    run.replays.give_back("one", leased.lease)
    assert (await waiting, now_s()) == (3, 1.0)


@in_virtual_time
async def test_disputed_result_is_computed_by_others_at_the_same_time() -> None:
    run = Run(reported_by(replay_of(3), "one", excess=1.0))
    assert await run.lease("two") is not None
    assert await run.lease("one") is None, "two is there"
    assert (await run.lease("three")) is not None
    assert await run.lease("four") is None, "three reports are enough"


@in_virtual_time
async def test_disputed_result_returns_to_a_verifier_that_is_alone() -> None:
    run = Run(reported_by(replay_of(3), "one", excess=1.0))
    assert await run.leased_step("two") == 3
    await asyncio.sleep(PRESENT_FOR_S + 1)
    leased = await run.lease("one")
    assert leased is not None
    assert leased.wanted == "float32/cpu"


@in_virtual_time
async def test_report_ends_the_lease_and_what_is_done_is_not_given_out_again() -> None:
    run = Run(replay_of(3))
    leased = await run.lease("one")
    assert leased is not None
    run.open[0] = reported_by(run.open[0], "one", excess=0.0)
    run.replays.end("one", run.open[0].key)
    with pytest.raises(Refused):
        run.replays.renew("one", leased.lease)
    assert await run.lease("one") is None


@in_virtual_time
async def test_result_of_another_attempt_is_another_replay() -> None:
    run = Run(replay_of(3))
    leased = await run.lease("one")
    assert leased is not None
    run.open[0] = replace(run.open[0], attempt=1, result_sha256=Sha256("9" * 64))
    with pytest.raises(Refused):
        run.replays.renew("one", leased.lease)
    again = await run.lease("one")
    assert again is not None
    assert again.result_sha256 == "9" * 64


@in_virtual_time
async def test_number_of_verifiers_is_bounded_and_those_that_left_give_way() -> None:
    run = Run()
    for number in range(MAX_VERIFIERS):
        assert await run.lease(f"{number}") is None
    with pytest.raises(Refused) as full:
        await run.lease("one more")
    assert refused(full) is Refusal.OVERLOADED
    await asyncio.sleep(PRESENT_FOR_S + 1)
    assert await run.lease("one more") is None
    assert run.replays.verifier_count == 1
