"""Samples fetched ahead: they change when samples arrive, and never which ones or what goes wrong."""

import asyncio
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.fetcher import BatchReceiver, DataFetcher, plan_requests
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.next_round_samples import AheadLimits, AheadSamples, batch_bytes, cut, is_at_hand, joined
from epochal.data_providers.protocol import CorruptData, DatasetSpec, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.state.intervals import BatchId, DataIds, subtract
from tests.support.data.states import state_file
from tests.support.simulate.virtual_time import run_virtually
from tests.unit.data_providers.test_fetcher import SETTINGS, SPEC, Provider, expected, intervals

LIMITS = AheadLimits(max_bytes=2**20, sample_bytes=64, timeout_s=5.0)
ROUND = (BatchId(0, 3),)
NEXT = (BatchId(4, 7),)
TOKENS = expected(list(range(130)))
"""The first token of each sample, which names it."""


async def fetch_ahead(ahead: AheadSamples, assignment: tuple[BatchId, ...], limits: AheadLimits = LIMITS) -> None:
    await ahead.fetch(plan_requests(assignment, SETTINGS), limits)


async def first_tokens(receiver: BatchReceiver) -> list[int]:
    return [token async for batch in receiver for token in batch.rows()[:, 0].tolist()]


async def receive(
    provider: Provider, ahead: AheadSamples, assignment: tuple[BatchId, ...], vocabulary: int | None = None
) -> tuple[list[int], BatchReceiver]:
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, SETTINGS, lambda: 0.5, vocabulary, ahead).fetch_data(assignment, group)
        return await first_tokens(receiver), receiver


async def fail(provider: Provider, ahead: AheadSamples, assignment: tuple[BatchId, ...]) -> BatchReceiver:
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, SETTINGS, lambda: 0.5, ahead=ahead).fetch_data(assignment, group)
        with pytest.raises(CorruptData):
            await first_tokens(receiver)
    return receiver


def indices(assignment: tuple[BatchId, ...]) -> list[int]:
    return [index for part in assignment for index in part.to_data_ids(SETTINGS.data_indices_per_batch)]


def with_ahead(provider: Provider, test: Callable[[AheadSamples], object]) -> object:
    """Run a test in virtual time with what holds samples ahead; it must leave nothing behind."""

    async def main() -> object:
        async with asyncio.TaskGroup() as group:
            ahead = AheadSamples(provider, group)
            found = await test(ahead)  # type: ignore[misc]
            await ahead.aclose()
            assert ahead.held == ()
            return found

    return run_virtually(main())


@given(intervals, intervals, st.sets(st.integers(0, 120)), st.integers(0, 400))
def test_round_gets_its_samples_whatever_was_fetched_ahead(
    guessed: list[BatchId], real: list[BatchId], bad: set[int], max_bytes: int
) -> None:
    provider = Provider()

    async def test(ahead: AheadSamples) -> None:
        provider.bad = bad
        await fetch_ahead(ahead, tuple(guessed), AheadLimits(max_bytes, 16, 5.0))
        assert ahead.held_bytes <= max_bytes
        provider.bad = set()
        tokens, _ = await receive(provider, ahead, tuple(real))
        assert tokens == [TOKENS[index] for index in indices(tuple(real))]
        assert subtract(ahead.held, [part.to_data_ids(2) for part in real]) == ahead.held

    with_ahead(provider, test)


def test_samples_that_are_there_are_not_waited_for_nor_asked_for_again() -> None:
    provider = Provider()
    provider.delay_s = 1.0

    async def test(ahead: AheadSamples) -> None:
        await fetch_ahead(ahead, NEXT)
        asked = len(provider.asked)
        tokens, receiver = await receive(provider, ahead, NEXT)
        assert tokens == [TOKENS[index] for index in indices(NEXT)]
        assert len(provider.asked) == asked
        assert receiver.waited.total_s == 0.0
        assert ahead.counts_since_last() == (8, 0)
        assert ahead.counts_since_last() == (0, 0)

    with_ahead(provider, test)


def test_part_that_turned_out_right_is_used_and_the_rest_thrown_away() -> None:
    provider = Provider()

    async def test(ahead: AheadSamples) -> None:
        await fetch_ahead(ahead, (BatchId(4, 7),))
        provider.asked.clear()
        tokens, _ = await receive(provider, ahead, (BatchId(1, 1), BatchId(5, 6), BatchId(9, 9)))
        assert tokens == [TOKENS[index] for index in (2, 3, 10, 11, 12, 13, 18, 19)]
        assert set(range(8, 16)).isdisjoint(index for data_ids in provider.asked for index in data_ids)
        await fetch_ahead(ahead, ())
        assert ahead.counts_since_last() == (4, 4)

    with_ahead(provider, test)


def test_present_rounds_requests_come_first() -> None:
    provider = Provider()
    provider.delay_s = 1.0

    async def test(ahead: AheadSamples) -> None:
        async with asyncio.TaskGroup() as group:
            receiver = DataFetcher(provider, SETTINGS, lambda: 0.5, ahead=ahead).fetch_data(ROUND, group)
            group.create_task(fetch_ahead(ahead, NEXT))
            await first_tokens(receiver)
        own = list(plan_requests(ROUND, SETTINGS))
        assert provider.asked == own + list(plan_requests(NEXT, SETTINGS))

    with_ahead(provider, test)


def test_failure_ahead_is_silent_and_the_round_reports_it() -> None:
    provider = Provider()
    provider.bad = {12}

    async def test(ahead: AheadSamples) -> None:
        await fetch_ahead(ahead, NEXT)
        assert ahead.held == (DataIds(8, 11),)
        assert (await fail(provider, ahead, NEXT)).failed_batch == BatchId(6, 6)

    with_ahead(provider, test)


def test_request_under_way_is_waited_for_if_the_round_needs_it() -> None:
    provider = Provider()
    provider.delay_s = 1.0

    async def test(ahead: AheadSamples) -> None:
        fetching = asyncio.ensure_future(fetch_ahead(ahead, NEXT))
        await asyncio.sleep(0.75)
        fetching.cancel()
        _, receiver = await receive(provider, ahead, NEXT)
        assert provider.asked == list(plan_requests(NEXT, SETTINGS))
        assert receiver.waited.fetching_s == pytest.approx(1.25)

    with_ahead(provider, test)


def test_request_under_way_that_is_overtaken_is_cancelled() -> None:
    provider = Provider()
    provider.delay_s = 3.0

    async def test(ahead: AheadSamples) -> None:
        loop = asyncio.get_running_loop()
        fetching = asyncio.ensure_future(fetch_ahead(ahead, NEXT))
        await asyncio.sleep(1.0)
        fetching.cancel()
        ahead.keep([DataIds(100, 101)])
        assert ahead.held == ()
        assert await ahead.missing_of(DataIds(8, 11)) == (DataIds(8, 11),)
        assert loop.time() < 1.5

    with_ahead(provider, test)


def test_request_that_hangs_ends_after_its_time() -> None:
    provider = Provider()
    provider.delay_s = 1e6

    async def test(ahead: AheadSamples) -> None:
        await fetch_ahead(ahead, NEXT)
        assert asyncio.get_running_loop().time() <= 6.0
        assert ahead.held == ()

    with_ahead(provider, test)


def test_answer_larger_than_the_bound_is_dropped_and_counted() -> None:
    provider = Provider()

    async def test(ahead: AheadSamples) -> None:
        await fetch_ahead(ahead, NEXT, AheadLimits(40, 1, 5.0))
        assert ahead.held == ()
        assert ahead.counts_since_last() == (0, 4)

    with_ahead(provider, test)


def test_samples_at_hand_are_not_fetched_ahead() -> None:
    dummy, far = DummyDataProvider(DatasetSpec(2, 8)), Provider()
    far.is_at_hand = False
    assert is_at_hand(dummy)
    assert not is_at_hand(far)
    assert is_at_hand(WeightedDataProvider([Weighted("a", dummy, 1), Weighted("b", dummy, 1)]))
    assert not is_at_hand(WeightedDataProvider([Weighted("a", dummy, 1), Weighted("b", far, 1)]))
    state = state_file(client={"ahead_bytes": 77})
    assert AheadLimits.of(state, far).max_bytes == 77
    assert AheadLimits.of(state, dummy).max_bytes == 0


def packed(first: int, count: int) -> TokenBatch:
    """Samples of different lengths with everything that a batch can have; sample *i* has documents of *i* and 1."""
    lengths = [[first + number, 1] for number in range(count)]
    flat = np.concatenate([np.full(sum(pair), first + number) for number, pair in enumerate(lengths)])
    offsets = np.concatenate(([0], np.cumsum([sum(pair) for pair in lengths]))).astype(np.int64)
    return TokenBatch(
        flat.astype("<u2"), offsets, flat + 1, flat + 2, np.array([length for pair in lengths for length in pair])
    )


@given(st.integers(1, 6), st.data())
def test_cut_and_joined_samples_are_the_same_ones(count: int, data: st.DataObject) -> None:
    whole = packed(3, count)
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count)))})
    parts = [(DataIds(a, b - 1), cut(whole, a, b)) for a, b in itertools.pairwise(cuts)]
    for data_ids, part in parts:
        other = packed(3 + data_ids.start, data_ids.count)
        assert part.sequence_lengths is not None
        np.testing.assert_array_equal(part.sequence_lengths, other.sequence_lengths)
    again = joined(data.draw(st.permutations(parts)))
    for name in ("input_ids", "offsets", "labels", "position_ids", "sequence_lengths"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    assert batch_bytes(whole) == sum(batch_bytes(part) for _, part in parts) - 8 * (len(parts) - 1)
    assert SPEC.sequence_length == 8
