"""`runtime/http/lean_connections.py`: parts of a connection that do what larger ones do."""

import asyncio

import pytest

from epochal.runtime.http.lean_connections import LeanEvent, LeanFlow, ShortLine
from tests.support.bounds import BOUND_S


async def waiting(event: LeanEvent, count: int) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.ensure_future(event.wait()) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_set_event_wakes_all_who_wait_even_if_cleared_at_once() -> None:
    event = LeanEvent()
    tasks = await waiting(event, 2)
    event.set()
    event.clear()
    async with asyncio.timeout(BOUND_S):
        assert [await task for task in tasks] == [True, True]


async def test_cleared_event_lets_later_ones_wait_until_it_is_set_again() -> None:
    event = LeanEvent(is_set=True)
    assert event.is_set()
    assert await event.wait()
    event.clear()
    (task,) = await waiting(event, 1)
    assert not task.done()
    event.set()
    async with asyncio.timeout(BOUND_S):
        assert await task


async def test_cancelled_wait_leaves_the_others_waiting() -> None:
    event = LeanEvent()
    one, other = await waiting(event, 2)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    assert not other.done()
    event.set()
    async with asyncio.timeout(BOUND_S):
        assert await other


async def test_flow_drains_at_once_until_writing_is_paused() -> None:
    flow = LeanFlow(asyncio.Transport())
    await flow.drain()
    flow.pause_writing()
    draining = asyncio.ensure_future(flow.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    flow.resume_writing()
    async with asyncio.timeout(BOUND_S):
        await draining


def test_line_gives_requests_in_the_order_of_their_arrival() -> None:
    line = ShortLine()
    for number in range(3):
        line.appendleft(number)
    assert [line.pop() for _ in range(3)] == [0, 1, 2]
