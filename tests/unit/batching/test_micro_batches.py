"""Plans of local steps, and the micro-batches that fulfil them."""

from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.micro_batches import examples_of, micro_batches
from epochal.batching.round_plan import plan_round
from epochal.data_providers.protocol import TokenBatch
from epochal.state.config.model_table import Linear
from epochal.state.errors import InternalError, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.schedule import InnerSchedule
from tests.support.models.local_training import arriving, batch_of, plan_of, sequences_of


@given(st.integers(1, 60), st.integers(1, 12))
def test_plan_splits_the_assignment_into_nearly_equal_local_steps(sequence_count: int, local_steps: int) -> None:
    sizes = plan_of(sequence_count, local_steps).micro_batch_sizes
    assert sum(sizes) == sequence_count
    assert len(sizes) == min(sequence_count, local_steps)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


def test_plan_takes_the_schedule_where_the_step_stands() -> None:
    line = Linear(base_lr=1.0, warmup_init_lr=0.0, warmup_steps=0, total_steps=100, final_lr=0.0)
    schedule = InnerSchedule(line, local_steps=4)
    plan = plan_round(6, (BatchId(0, 1), BatchId(8, 8)), 2, schedule)
    assert plan.learning_rates == pytest.approx([0.80, 0.79, 0.78, 0.77])
    assert plan.sequence_count == 6
    assert plan_round(6, (BatchId(0, 0),), 2, schedule).learning_rates == pytest.approx([0.80, 0.79])
    with pytest.raises(InternalError):
        plan_round(6, (), 2, schedule)


@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 9))
async def test_micro_batches_are_the_same_however_the_data_arrive(count: int, local_steps: int, group: int) -> None:
    plan, sequences = plan_of(count, local_steps), sequences_of(*range(1, count + 1))
    found = [part async for part in micro_batches(plan, arriving(sequences, group))]
    assert tuple(len(part.examples) for part in found) == plan.micro_batch_sizes
    assert [part.local_step for part in found] == list(range(len(found)))
    flat = [example.tokens.tolist() for part in found for example in part.examples]
    assert flat == [sequence.tolist() for sequence in sequences]


async def test_micro_batches_skip_an_empty_answer() -> None:
    async def batches() -> AsyncIterator[TokenBatch]:
        yield batch_of([])
        yield batch_of(sequences_of(4, 4))

    assert [len(part.examples) async for part in micro_batches(plan_of(2, 1), batches())] == [2]


def pack(*lengths: int, source_count: int) -> TokenBatch:
    tokens = sequences_of(sum(lengths))[0] if lengths else np.empty(0, np.uint16)
    ends = [0, tokens.size] if lengths else [0]
    return TokenBatch(
        tokens, np.array(ends, np.int64), sequence_lengths=np.array(lengths, np.int64), source_count=source_count
    )


async def packs(*given: TokenBatch) -> AsyncIterator[TokenBatch]:
    for batch in given:
        yield batch


async def test_pack_that_reaches_the_planned_number_ends_a_micro_batch() -> None:
    plan = plan_of(12, 4)  # micro-batches end after 3, 6, 9 and 12 samples
    arrived = packs(pack(5, 4, source_count=2), pack(9, source_count=7), pack(2, source_count=1), pack(source_count=2))
    found = [part async for part in micro_batches(plan, arrived)]
    assert [(part.local_step, [example.tokens.size for example in part.examples]) for part in found] == [
        (0, [5, 4, 9]),
        (3, [2]),
    ]


@pytest.mark.parametrize(("count", "message"), [(11, "ended after 11 of 12"), (13, "more samples arrived than the 12")])
async def test_packs_of_another_number_of_samples_than_planned_fail(count: int, message: str) -> None:
    with pytest.raises(TrainerFailed, match=message):
        _ = [part async for part in micro_batches(plan_of(12, 4), packs(pack(3, source_count=count)))]


def test_examples_carry_positions_only_where_they_do_not_count_from_0() -> None:
    tokens, positions = np.arange(9, dtype=np.uint16), np.array([0, 1, 2, 3, 0, 1, 7, 8, 9])
    batch = TokenBatch(tokens, np.array([0, 6, 9]), position_ids=positions, sequence_lengths=np.array([4, 2, 3]))
    (first, second), (third,) = examples_of(batch)
    assert (first.position_ids, second.position_ids) == (None, None)
    assert third.position_ids is not None
    assert third.position_ids.tolist() == [7, 8, 9]
    assert examples_of(TokenBatch(tokens, np.array([0, 9])))[0][0].position_ids is None
