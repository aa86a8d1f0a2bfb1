"""`runtime/broadcast.py`: everyone who waits is woken, once each time."""

import asyncio
import math
from collections import Counter

import pytest

from epochal.runtime.broadcast import SLICE_S, TURN_PART, Broadcast, PacedBroadcast
from tests.support.simulate.virtual_time import in_virtual_time


@in_virtual_time
async def test_notification_wakes_every_waiter() -> None:
    broadcast = Broadcast()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(broadcast.wait()) for _ in range(3)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in waiting)
        broadcast.notify()


@in_virtual_time
async def test_wait_after_a_notification_waits_for_the_next_one() -> None:
    broadcast = Broadcast()
    broadcast.notify()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(broadcast.wait())
        await asyncio.sleep(1)
        assert not waiting.done()
        broadcast.notify()


@in_virtual_time
async def test_event_taken_before_a_notification_is_set_by_it() -> None:
    broadcast = Broadcast()
    changed = broadcast.next
    broadcast.notify()
    await changed.wait()


@in_virtual_time
async def test_closed_broadcast_lets_every_wait_return_at_once() -> None:
    broadcast = Broadcast()
    async with asyncio.TaskGroup() as group:
        group.create_task(broadcast.wait())
        await asyncio.sleep(0)
        broadcast.close()
    broadcast.notify()
    await broadcast.wait()


async def woken_at_s(broadcast: PacedBroadcast) -> float:
    await broadcast.wait()
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_paced_notification_wakes_a_few_at_once_and_many_later() -> None:
    broadcast = PacedBroadcast(prompt_count=2, per_s=10)
    for count, first_s, last_s in ((2, 0.0, 0.0), (30, 3.0, 3.0 + 29 * SLICE_S)):
        since_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(woken_at_s(broadcast)) for _ in range(count)]
            await asyncio.sleep(0)
            assert broadcast.is_prompt is (count == 2)
            broadcast.notify()
            broadcast.notify()
        woken_s = [task.result() - since_s for task in waiting]
        assert woken_s == sorted(woken_s), "who waits for long is not told last"
        assert (woken_s[0], woken_s[-1]) == pytest.approx((first_s, last_s))


@in_virtual_time
async def test_paced_notification_wakes_some_after_the_others() -> None:
    broadcast = PacedBroadcast(prompt_count=8, per_s=500)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(woken_at_s(broadcast)) for _ in range(1000)]
        await asyncio.sleep(0)
        broadcast.notify()
    together = Counter(round(task.result() / SLICE_S) for task in waiting)
    assert max(together.values()) == math.ceil(500 * SLICE_S / TURN_PART)
    assert max(task.result() for task in waiting) < 1000 / 500 * TURN_PART


@in_virtual_time
async def test_paced_notification_during_a_turn_begins_another_one() -> None:
    broadcast = PacedBroadcast(prompt_count=0, per_s=10)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(woken_at_s(broadcast)) for _ in range(10)]
        await asyncio.sleep(0)
        broadcast.notify()
        late = group.create_task(woken_at_s(broadcast))
        await asyncio.sleep(SLICE_S)
        for task in waiting:
            task.cancel()
        broadcast.notify()
    assert late.result() == pytest.approx(1.0), "the turn whose tasks have gone does not swallow it"
    assert broadcast.turn_count == 2


@in_virtual_time
async def test_paced_notification_after_a_long_silence_begins_at_once() -> None:
    broadcast = PacedBroadcast(prompt_count=0, per_s=10)
    broadcast.notify()
    await asyncio.sleep(100)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(woken_at_s(broadcast)) for _ in range(30)]
        await asyncio.sleep(0)
        broadcast.notify()
    assert waiting[0].result() == 100.0
    assert waiting[-1].result() == pytest.approx(100.0 + 29 * SLICE_S)


@in_virtual_time
async def test_paced_broadcast_that_is_closed_wakes_at_once_and_ever_after() -> None:
    broadcast = PacedBroadcast(prompt_count=0, per_s=1)
    broadcast.notify()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(woken_at_s(broadcast)) for _ in range(30)]
        await asyncio.sleep(0)
        broadcast.notify()
        await asyncio.sleep(1)
        broadcast.close()
        await broadcast.wait()
    assert {task.result() for task in waiting} == {1.0}


@in_virtual_time
async def test_tasks_that_wait_again_at_once_are_woken_at_the_rate() -> None:
    broadcast = PacedBroadcast(prompt_count=2, per_s=10)
    woken_count = 0

    async def follow() -> None:
        nonlocal woken_count
        while True:
            if not broadcast.is_prompt:
                broadcast.notify()
                await broadcast.wait()
            woken_count += 1
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(broadcast.wait()) for _ in range(30)]
        await asyncio.sleep(0)
        broadcast.notify()
        following = [group.create_task(follow()) for _ in range(30)]
        await asyncio.sleep(100)
        for task in (*following, *waiting):
            task.cancel()
    assert woken_count <= 100 * 10 * 1.1
