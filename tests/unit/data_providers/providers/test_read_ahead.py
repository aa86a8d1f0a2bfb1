"""Reading ahead: the same samples whatever is requested, within bounds, and errors only for what is requested."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.data_providers.protocol import CorruptData, DatasetSpec, Tokens
from epochal.data_providers.providers.read_ahead import MAX_UNITS_UNDER_WAY, Budget, ReadAhead
from epochal.state.intervals import DataIds

SPEC = DatasetSpec(2, 4)


class Source:
    """Samples that are their own data indices; records what is asked for, and may hold answers back or fail."""

    def __init__(self) -> None:
        self.asked: list[DataIds] = []
        self.wrong: set[int] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def fill(self, data_ids: DataIds, tokens: Tokens) -> None:
        self.asked.append(data_ids)
        await asyncio.sleep(0)
        await self.may_answer.wait()
        if not self.wrong.isdisjoint(data_ids):
            raise CorruptData("wrong")
        tokens[:] = expected(data_ids)


def expected(data_ids: DataIds) -> Tokens:
    return np.repeat(np.arange(data_ids.start, data_ids.end + 1), 4).astype("<u2")


def requests(sizes: list[int], start: int = 0) -> Iterator[DataIds]:
    for size in sizes:
        yield DataIds(start, start + size - 1)
        start += size


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@given(SIZES, st.integers(1, 9))
@settings(deadline=None)
def test_samples_read_ahead_are_those_that_were_requested(sizes: list[int], step: int) -> None:
    async def main() -> None:
        source = Source()
        ahead = ReadAhead(source.fill, SPEC, Budget(1000))

        with ahead.expecting([DataIds(5, sum(sizes) + 4)], step):
            for data_ids in requests(sizes, 5):
                assert np.array_equal(await ahead.get(data_ids), expected(data_ids))
        assert sum(asked.count for asked in source.asked) == sum(sizes), "nothing but what was told"
        await ahead.aclose()

    asyncio.run(main())


async def test_read_ahead_holds_no_more_than_its_budget() -> None:
    source = Source()
    budget = Budget(10 * 8 * 4)  # of 40 samples of 8 bytes
    ahead = ReadAhead(source.fill, SPEC, budget)
    with ahead.expecting([DataIds(0, 10**9)], 4):
        await ahead.get(DataIds(0, 3))
        for _ in range(50):
            await idle()
        held = sum(asked.count for asked in source.asked) - 4
        assert 0 < held * 8 <= 10 * 8 * 4
    await ahead.aclose()
    assert budget.take(10 * 8 * 4 // 2), "all was given back"
    assert budget.take(10 * 8 * 4 // 4)


async def test_read_ahead_asks_for_few_units_at_a_time() -> None:
    source = Source()
    ahead = ReadAhead(source.fill, SPEC)
    with ahead.expecting([DataIds(0, 10**9)], 4):
        await ahead.get(DataIds(0, 3))
        source.may_answer.clear()
        source.asked.clear()
        await idle()
        assert len(source.asked) <= MAX_UNITS_UNDER_WAY
        source.may_answer.set()
    await ahead.aclose()


async def test_requests_that_overlap_are_fetched_once() -> None:
    source = Source()
    ahead = ReadAhead(source.fill, SPEC)
    left = requests([4] * 100)

    async def read() -> None:
        for data_ids in left:
            assert np.array_equal(await ahead.get(data_ids), expected(data_ids))

    with ahead.expecting([DataIds(0, 399)], 4):
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(read())
    await ahead.aclose()
    assert sum(asked.count for asked in source.asked) == 400


async def test_error_ahead_is_raised_only_for_its_own_samples() -> None:
    source = Source()
    source.wrong = {13}
    ahead = ReadAhead(source.fill, SPEC)
    with ahead.expecting([DataIds(0, 31)], 4):
        for data_ids in requests([4] * 8):
            if 13 in list(data_ids):
                with pytest.raises(CorruptData):
                    await ahead.get(data_ids)
            else:
                assert np.array_equal(await ahead.get(data_ids), expected(data_ids))
    await ahead.aclose()


async def test_request_that_is_cancelled_can_be_repeated() -> None:
    source = Source()
    ahead = ReadAhead(source.fill, SPEC)
    with ahead.expecting([DataIds(0, 31)], 4):
        source.may_answer.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ahead.get(DataIds(0, 3)), 0.01)
        source.may_answer.set()
        for data_ids in requests([4] * 8):
            assert np.array_equal(await ahead.get(data_ids), expected(data_ids))
    await ahead.aclose()


async def test_close_ends_what_is_under_way() -> None:
    source = Source()
    ahead = ReadAhead(source.fill, SPEC)
    with ahead.expecting([DataIds(0, 31)], 4):
        await ahead.get(DataIds(0, 3))
        source.may_answer.clear()
        await idle()
        async with asyncio.timeout(10):
            await ahead.aclose()
    assert len(asyncio.all_tasks()) == 1
