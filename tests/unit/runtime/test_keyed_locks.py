"""`runtime/keyed_locks.py`: one at a time for each key, whoever comes when."""

import asyncio

import pytest

from epochal.runtime.keyed_locks import KeyedLocks
from tests.support.simulate.virtual_time import in_virtual_time


@in_virtual_time
async def test_one_key_is_held_by_one_at_a_time_whoever_comes_when() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    inside, most, order = 0, 0, []

    async def visit(number: int, begins_s: float) -> None:
        nonlocal inside, most
        await asyncio.sleep(begins_s)
        async with locks.of("key"):
            inside += 1
            most = max(most, inside)
            order.append(number)
            await asyncio.sleep(1)
            inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):  # the last ones come as others leave
            tasks.create_task(visit(number, 0.5 * number))
    assert (most, order, len(locks)) == (1, [0, 1, 2, 3, 4], 0)


@in_virtual_time
async def test_keys_do_not_wait_for_each_other() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    async with locks.of("one"), locks.of("other"):
        assert len(locks) == 2
    assert len(locks) == 0


@in_virtual_time
async def test_lock_is_passed_on_where_who_waited_was_cancelled() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    await locks.acquire("key")
    first = asyncio.create_task(locks.acquire("key"))
    second = asyncio.create_task(locks.acquire("key"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    locks.release("key")
    await second
    locks.release("key")
    assert len(locks) == 0
