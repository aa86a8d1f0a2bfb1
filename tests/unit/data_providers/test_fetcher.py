"""`data_providers/fetcher.py`: requests, order, bounds, retries, and an end that is never silent."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.fetcher import DataFetcher, FetchSettings, check_vocabulary, failure_kind, plan_requests
from epochal.data_providers.protocol import CorruptData, DatasetSpec, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.state.errors import DataError
from epochal.state.intervals import BatchId, DataIds
from tests.support.data.states import state_file
from tests.support.simulate.virtual_time import in_virtual_time, run_virtually

SETTINGS = FetchSettings(
    data_indices_per_batch=2, samples_per_request=4, attempts=3, timeout_s=5.0, prefetch_requests=2
)
SPEC = DatasetSpec(2, 8)


class Provider(DummyDataProvider):
    """Made-up data with faults: indices that always fail, a number of failing requests, and a delay."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.asked: list[DataIds] = []
        self.bad: set[int] = set()
        self.bad_error: type[DataError] = CorruptData
        self.unavailable = 0
        self.delay_s = 0.0
        self.short = False

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        self.asked.append(data_ids)
        await asyncio.sleep(self.delay_s)
        if self.unavailable:
            self.unavailable -= 1
            raise SourceUnavailable("the source does not answer")
        if any(index in data_ids for index in self.bad):
            raise self.bad_error(f"bad data in {data_ids}")
        batch = await super().get_samples(data_ids)
        return TokenBatch.fixed_length(batch.input_ids[: -SPEC.sequence_length], 8) if self.short else batch


async def received(
    provider: Provider, assignment: tuple[BatchId, ...], settings: FetchSettings = SETTINGS
) -> list[int]:
    """The first token of every sample, which names it."""
    tokens: list[int] = []
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, settings, lambda: 0.5).fetch_data(assignment, group)
        async for batch in receiver:
            tokens += batch.rows()[:, 0].tolist()
    return tokens


async def failure(provider: Provider, assignment: tuple[BatchId, ...]) -> tuple[DataError, BatchId | None]:
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, SETTINGS, lambda: 0.5).fetch_data(assignment, group)
        with pytest.raises(DataError) as caught:
            [batch async for batch in receiver]
        with pytest.raises(DataError):
            await anext(receiver)
    return caught.value, receiver.failed_batch


def expected(indices: list[int]) -> list[int]:
    rows = [DummyDataProvider(SPEC).get_samples(DataIds(i, i)) for i in indices]
    return [int(asyncio.run(row).input_ids[0]) for row in rows]


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda pair: BatchId(pair[0], pair[0] + pair[1])), max_size=5
)


@given(intervals, st.integers(1, 6), st.integers(1, 10))
def test_requests_any_assignment_cover_it_in_order_within_the_bound(
    assignment: list[BatchId], k: int, samples: int
) -> None:
    settings = replace(SETTINGS, data_indices_per_batch=k, samples_per_request=samples)
    requests = list(plan_requests(assignment, settings))
    asked = [index for request in requests for index in request]
    assert asked == [index for batches in assignment for index in range(batches.start * k, (batches.end + 1) * k)]
    for request in requests:
        assert request.count <= samples
        if k <= samples:
            assert request.count % k == 0


def test_fetch_data_several_intervals_deliver_their_samples_in_order() -> None:
    assignment = (BatchId(7, 9), BatchId(2, 2))
    tokens = run_virtually(received(Provider(), assignment))
    assert tokens == expected([14, 15, 16, 17, 18, 19, 4, 5])


@in_virtual_time
async def test_fetch_data_slow_receiver_bounds_what_waits() -> None:
    provider = Provider()
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, SETTINGS, lambda: 0.5).fetch_data((BatchId(0, 99),), group)
        await asyncio.sleep(1000)
        assert len(provider.asked) == SETTINGS.prefetch_requests + 1
        await anext(receiver)
        await asyncio.sleep(1000)
        assert len(provider.asked) == SETTINGS.prefetch_requests + 2
        receiver.close()


@in_virtual_time
async def test_fetch_data_unavailable_source_is_retried_with_growing_delays() -> None:
    provider = Provider()
    provider.unavailable = 2
    assert len(await received(provider, (BatchId(0, 0),))) == 2
    assert provider.asked == [DataIds(0, 1)] * 3
    assert asyncio.get_running_loop().time() == pytest.approx(0.75 * (0.1 + 0.2))


@in_virtual_time
async def test_fetch_data_unavailable_source_fails_with_the_providers_error() -> None:
    provider = Provider()
    provider.unavailable = 1000
    error, batch = await failure(provider, (BatchId(3, 9),))
    assert isinstance(error, SourceUnavailable)
    assert failure_kind(error) == "unavailable"
    assert batch == BatchId(3, 4)
    assert len(provider.asked) == SETTINGS.attempts


@in_virtual_time
async def test_fetch_data_hanging_source_fails_after_the_timeout() -> None:
    provider = Provider()
    provider.delay_s = 1e6
    error, _ = await failure(provider, (BatchId(0, 0),))
    assert isinstance(error, SourceUnavailable)
    assert 15 < asyncio.get_running_loop().time() < 16


@pytest.mark.parametrize("bad", [0, 3, 21])
@in_virtual_time
async def test_fetch_data_corrupt_sample_is_narrowed_to_its_batch_without_retry(bad: int) -> None:
    provider = Provider()
    provider.bad = {bad}
    error, batch = await failure(provider, (BatchId(0, 10),))
    assert isinstance(error, CorruptData)
    assert batch == BatchId(bad // 2, bad // 2)
    assert len(provider.asked) <= bad // 4 + 1 + 2


@in_virtual_time
async def test_fetch_data_answer_with_too_few_samples_fails_the_step() -> None:
    provider = Provider()
    provider.short = True
    error, _ = await failure(provider, (BatchId(0, 1),))
    assert isinstance(error, CorruptData)


@in_virtual_time
async def test_fetch_data_closed_receiver_stops_fetching() -> None:
    provider = Provider()
    provider.delay_s = 1.0
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, SETTINGS, lambda: 0.5).fetch_data((BatchId(0, 99),), group)
        assert (await anext(receiver)).sample_count == 4
        receiver.close()
    assert len(provider.asked) == 2


def test_fetch_settings_long_sequences_are_requested_one_at_a_time() -> None:
    assert FetchSettings.of(state_file(model__LLM__max_seq_len=4_000_000)).samples_per_request == 1
    assert FetchSettings.of(state_file(model__LLM__max_seq_len=65_536)).samples_per_request == 32
    assert FetchSettings.of(state_file(model__LLM__max_seq_len=16)).samples_per_request == 256


@in_virtual_time
async def test_fetch_data_token_above_the_vocabulary_is_narrowed_to_its_batch() -> None:
    class OneBadToken(Provider):
        async def get_samples(self, data_ids: DataIds) -> TokenBatch:
            batch = await super().get_samples(data_ids)
            if 5 in data_ids:
                batch.rows()[5 - data_ids.start, 3] = 300
            return batch

    async with asyncio.TaskGroup() as group:
        fetcher = DataFetcher(OneBadToken(), SETTINGS, lambda: 0.5, vocabulary=256)
        receiver = fetcher.fetch_data((BatchId(0, 9),), group)
        assert (await anext(receiver)).sample_count == 4
        with pytest.raises(
            CorruptData, match="has token 300 at position 3; the model's vocabulary allows 0 to 255"
        ) as caught:
            await anext(receiver)
    assert caught.value.context == {"data_index": 5, "token": 300, "vocabulary": 256}
    assert receiver.failed_batch == BatchId(2, 2)


@pytest.mark.parametrize(("offsets", "index"), [([0, 2, 2, 5], 12), ([0, 5], 10), ([0, 3, 5, 5], 10)])
def test_check_vocabulary_names_the_sample_that_holds_the_token(offsets: list[int], index: int) -> None:
    batch = TokenBatch(np.array([1, 2, 9, 9, 1], "<u2"), np.array(offsets, np.int64))
    with pytest.raises(CorruptData, match=f"data index {index} has token 9"):
        check_vocabulary(batch, 10, 9)
    check_vocabulary(batch, 10, 10)
