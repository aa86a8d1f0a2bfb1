"""`coordinator/blobs/transfers.py`: slow transfers end, and give way to others where places are short; steady ones go
on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from epochal.coordinator.blobs.transfers import GIVE_WAY_S, GRACE_S, MAX_WAIT_S, MIN_BYTES_PER_S, Places, Transfer
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

ONE = ClientId("a" * 32)


def now_s() -> float:
    return VirtualClock().monotonic_s()


def member(number: int) -> ClientId:
    return ClientId(f"{number:032x}")


async def never() -> None:
    await asyncio.Event().wait()


async def receive(transfer: Transfer, bytes_per_s: float, seconds: float) -> None:
    """Receive a piece each second at this rate."""
    for _ in range(int(seconds)):
        await transfer.move(lambda: asyncio.sleep(1))
        transfer.moved_bytes += int(bytes_per_s)


async def refused(awaitable: Awaitable[object]) -> Refused:
    with pytest.raises(Refused) as caught:
        await awaitable
    return caught.value


@in_virtual_time
async def test_steady_transfer_at_the_minimum_rate_never_ends() -> None:
    await receive(Transfer(ONE, now_s, MIN_BYTES_PER_S), MIN_BYTES_PER_S, 3600)


@pytest.mark.parametrize(("bytes_per_s", "ends_s"), [(0, GRACE_S), (MIN_BYTES_PER_S // 2, 2 * GRACE_S)])
@in_virtual_time
async def test_slow_transfer_ends_when_its_average_is_too_low(bytes_per_s: float, ends_s: float) -> None:
    started_s = now_s()
    refusal = await refused(receive(Transfer(ONE, now_s, MIN_BYTES_PER_S), bytes_per_s, 3600))
    assert refusal.kind == "body-timeout"
    assert now_s() - started_s == pytest.approx(ends_s, abs=2)


@in_virtual_time
async def test_transfer_that_waits_for_the_coordinator_is_not_slow() -> None:
    transfer = Transfer(ONE, now_s, MIN_BYTES_PER_S)
    for _ in range(10):
        await asyncio.sleep(2 * GRACE_S)
        await receive(transfer, MIN_BYTES_PER_S, 1)


@in_virtual_time
async def test_transfer_that_is_ended_raises_at_once_and_ever_after() -> None:
    transfer = Transfer(ONE, now_s, MIN_BYTES_PER_S)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(refused(transfer.move(never)))
        await asyncio.sleep(1)
        transfer.end(Refused(Refusal.LATE_RESULT, "too late"))
        transfer.end(Refused(Refusal.UNAUTHORIZED, "gone"))
    assert waiting.result().kind == "late-result"
    assert (await refused(transfer.move(never))).kind == "late-result"


@in_virtual_time
async def test_member_beyond_its_places_is_refused_and_nobody_else() -> None:
    places = Places(4, 1, now_s)
    async with places.place(ONE):
        with pytest.raises(Refused, match="1 transfers of this client"):
            async with places.place(ONE):
                raise AssertionError("a place was given")
        async with places.place(member(2)):
            assert places.running_count == 2
    async with places.place(ONE):
        assert places.running_count == 1


async def hold(places: Places, number: int, step: Callable[[Transfer], Awaitable[None]]) -> str:
    """Hold a place for a member's transfer; return "done", or the kind of the refusal that ended it."""
    try:
        async with places.place(member(number)) as transfer:
            await step(transfer)
    except Refused as refusal:
        return refusal.kind
    return "done"


@in_virtual_time
async def test_transfers_that_drip_give_way_to_steady_ones() -> None:
    places = Places(4, 1, now_s)
    started_s = now_s()
    async with asyncio.TaskGroup() as tasks:
        dripping = [
            tasks.create_task(hold(places, number, lambda transfer: receive(transfer, 1, 60))) for number in range(4)
        ]
        await asyncio.sleep(1)
        steady = [
            tasks.create_task(hold(places, number, lambda transfer: receive(transfer, MIN_BYTES_PER_S, 60)))
            for number in range(10, 13)
        ]
        await asyncio.sleep(GIVE_WAY_S)
        assert places.running_count == 4
        kinds = sorted([await dripping[index] for index in range(4)])
        assert kinds == ["body-timeout", "overloaded", "overloaded", "overloaded"]
        assert now_s() - started_s < GRACE_S + 2
    assert [task.result() for task in steady] == ["done"] * 3


@in_virtual_time
async def test_steady_transfers_do_not_give_way() -> None:
    places = Places(2, 1, now_s)
    async with asyncio.TaskGroup() as tasks:
        steady = [
            tasks.create_task(hold(places, number, lambda transfer: receive(transfer, MIN_BYTES_PER_S, 30)))
            for number in range(2)
        ]
        await asyncio.sleep(5)
        asked_s = now_s()
        assert await hold(places, 9, lambda transfer: receive(transfer, 1, 1)) == "overloaded"
        assert now_s() - asked_s == pytest.approx(MAX_WAIT_S, abs=0.1)
    assert [task.result() for task in steady] == ["done"] * 2
    assert await hold(places, 9, lambda transfer: receive(transfer, 1, 1)) == "done"
