"""`coordinator/insight/strangers_time.py`: strangers look into the past for a bounded part of the time, in virtual
time."""

import asyncio

import pytest

from epochal.coordinator.insight.strangers_time import (
    ADDRESS_AT_ONCE_S,
    AT_ONCE_S,
    MAX_WAITING,
    PART_OF_ADDRESS,
    PART_OF_TIME,
    PATIENCE_S,
    StrangersTime,
)
from epochal.coordinator.run.long_polls import Reader, stranger_at
from epochal.state.errors import Refused
from tests.support.simulate.virtual_time import in_virtual_time

LOOK_S = 0.12
FLOOD_S = 60.0


async def look(time: StrangersTime, stranger: Reader) -> None:
    async with time.turn(stranger):
        await asyncio.sleep(LOOK_S)


async def looks_of(time: StrangersTime, count: int) -> list[float]:
    """Return how long strangers at addresses of their own were shown the past, who ask for `FLOOD_S` without a rest."""
    shown_s = [0.0] * count

    async def ask(number: int) -> None:
        while True:
            try:
                await look(time, stranger_at(f"192.0.2.{number}"))
                shown_s[number] += LOOK_S
            except Refused:
                continue

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(ask(number)) for number in range(count)]
        await asyncio.sleep(FLOOD_S)
        for task in asking:
            task.cancel()
    return shown_s


@in_virtual_time
async def test_strangers_that_ask_without_rest_get_a_bounded_time() -> None:
    assert sum(await looks_of(StrangersTime(), 4)) <= AT_ONCE_S + PART_OF_TIME * FLOOD_S + LOOK_S


@in_virtual_time
async def test_address_that_has_used_its_time_leaves_some_to_others() -> None:
    time = StrangersTime()
    (greedy_s,) = await looks_of(time, 1)
    assert greedy_s <= ADDRESS_AT_ONCE_S + PART_OF_ADDRESS * FLOOD_S + LOOK_S
    await look(time, stranger_at("192.0.2.99"))


@in_virtual_time
async def test_stranger_is_refused_late_and_told_when_to_ask_again() -> None:
    time, loop = StrangersTime(), asyncio.get_running_loop()
    await looks_of(time, 1)
    began_s = loop.time()
    with pytest.raises(Refused) as refused:
        await look(time, stranger_at("192.0.2.0"))
    assert loop.time() - began_s == pytest.approx(PATIENCE_S)
    assert refused.value.kind == "rate-limited"
    await asyncio.sleep(refused.value.context["retry_after_s"])
    await look(time, stranger_at("192.0.2.0"))


@in_virtual_time
async def test_number_of_strangers_that_wait_is_bounded() -> None:
    time, refused = StrangersTime(), 0

    async def ask(number: int) -> None:
        nonlocal refused
        try:
            await look(time, stranger_at(f"192.0.2.{number}"))
        except Refused:
            refused += 1

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(number)) for number in range(MAX_WAITING + 2)]
        await asyncio.sleep(LOOK_S / 2)
        assert refused == 1, "one looks, and all but one wait"
        for task in asked:
            task.cancel()
