"""`runtime/broadcast.py`: everyone who waits is woken, once each time."""

import asyncio

from runtime.broadcast import Broadcast
from tests.support.virtual_time import in_virtual_time


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
