"""Rows of global batches: every sample of an assignment is loaded once, by the process that the layout says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.batching.mesh.layout import MeshLayout, spread_over
from epochal.batching.mesh.mesh_rows import (
    GlobalBatch,
    RowArrays,
    RowReader,
    computed_rows,
    global_batches,
    loaded_indices,
    packed_rows,
)
from epochal.batching.micro_batches import Example, micro_batches
from epochal.batching.packing.task_encoder import TaskEncoder
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, TokenBatch
from epochal.state.errors import TrainerFailed
from epochal.state.intervals import BatchId, DataIds, total_batches
from epochal.state.model.tensors import Tensors
from epochal.trainers.ngram.learner import NgramModel
from tests.support.data.packing import context, packer_of, samples_of
from tests.support.models.local_training import SEED, TINY

LAYOUTS = st.builds(
    lambda data, tensor, share, batch_size: spread_over(
        {"data": data, "tensor": tensor}, max(1, data * tensor // share), batch_size
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
)


@st.composite
def plans(draw: st.DrawFn) -> RoundPlan:
    starts = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True))
    intervals = tuple(BatchId(10 * start, 10 * start + draw(st.integers(0, 9))) for start in starts)
    k = draw(st.integers(1, 3))
    total = total_batches(intervals) * k
    return RoundPlan(1, intervals, k, (0.1,) * draw(st.integers(1, min(total, 8))))


def indices_of(plan: RoundPlan) -> list[int]:
    return [index for part in plan.assignment for index in part.to_data_ids(plan.data_indices_per_batch)]


async def stream(intervals: list[DataIds], group: int = 3, length: int = 4) -> "list[TokenBatch]":
    """Samples that say their data index."""
    indices = [index for interval in intervals for index in interval]
    return [
        TokenBatch.fixed_length(np.repeat(np.array(indices[at : at + group], dtype="<u4"), length), length)
        for at in range(0, len(indices), group)
    ]


class Given:
    """An async iterator over a list."""

    def __init__(self, items: list[TokenBatch]) -> None:
        self.items = iter(items)

    def __aiter__(self) -> "Given":
        return self

    async def __anext__(self) -> TokenBatch:
        try:
            return next(self.items)
        except StopIteration:
            raise StopAsyncIteration from None


@given(plans(), LAYOUTS)
async def test_every_row_is_loaded_once_and_lands_where_the_global_batch_has_it(
    plan: RoundPlan, layout: MeshLayout
) -> None:
    wanted = indices_of(plan)
    processes = int(layout.processes.max()) + 1
    loaded = [loaded_indices(plan, layout, process) for process in range(processes)]
    each = [index for intervals in loaded for part in intervals for index in part]
    assert sorted(each) == sorted(wanted), "each once"
    readers = [RowReader(layout, process, 4, Given(await stream(loaded[process]))) for process in range(processes)]
    seen: list[int] = []
    for batch in global_batches(plan, layout.global_batch_size):
        whole = RowArrays.zeros(layout.global_batch_size, 4)
        for process, reader in enumerate(readers):
            rows = await reader.read(batch)
            loading = layout.loading(process)
            for number, shard in enumerate(loading.needed_shards):
                own = slice(number * layout.batch_size, (number + 1) * layout.batch_size)
                if shard in loading.received_from:
                    assert not rows.data[own].any(), "zeros of the right shape"
                else:
                    whole.data[shard * layout.batch_size : (shard + 1) * layout.batch_size] = rows.data[own]
        real = wanted[batch.start : batch.start + batch.row_count]
        is_real = whole.weights == 1
        assert whole.tokens[is_real, 0].tolist() == real
        assert set(whole.weights[~is_real].tolist()) <= {0.0}
        assert (whole.labels[~is_real] == IGNORED_LABEL).all()
        assert whole.examples(np.flatnonzero(~is_real).tolist()) == []
        for shard in is_real.reshape(-1, layout.batch_size):
            assert shard.tolist() == sorted(shard.tolist(), reverse=True), "a shard's own rows come first"
        ends = is_real.sum() + batch.start in np.cumsum(plan.micro_batch_sizes)
        assert batch.ends_step == ends
        seen += real
    assert seen == wanted
    assert sum(reader.rows_loaded for reader in readers) == len(wanted)


@given(LAYOUTS, st.data())
async def test_every_row_is_computed_once_by_a_process_that_has_it(layout: MeshLayout, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, layout.global_batch_size))
    batch = GlobalBatch(0, 0, count, ends_step=True)
    plan = RoundPlan(1, (BatchId(0, count - 1),), 1, (0.1,))
    computed: list[int] = []
    held: dict[int, list[int]] = {}  # by shard, as its loader has it
    processes = range(int(layout.processes.max()) + 1)
    for process in processes:
        samples = Given(await stream(loaded_indices(plan, layout, process)))
        rows = await RowReader(layout, process, 4, samples).read(batch)
        for number, shard in enumerate(layout.loading(process).needed_shards):
            if shard in layout.loading(process).loaded_shards:
                held[shard] = rows.tokens[number * layout.batch_size :, 0].tolist()
    for process in processes:
        needed = layout.loading(process).needed_shards
        for row in computed_rows(layout, process, count):
            number, place = divmod(row, layout.batch_size)
            computed.append(held[needed[number]][place])
    assert sorted(computed) == list(range(count))


@given(st.lists(st.integers(0, 3 * 8), min_size=1, max_size=40), LAYOUTS, st.integers(1, 4), st.booleans())
async def test_packed_rows_are_those_of_one_process_each_for_one_process(
    lengths: list[int], layout: MeshLayout, local_steps: int, splits: bool
) -> None:
    plan = RoundPlan(1, (BatchId(0, len(lengths) - 1),), 1, (0.1,) * min(local_steps, len(lengths)))

    def packed() -> Given:
        packer = packer_of(encoder=TaskEncoder(context(row_tokens=8)), oversized="split" if splits else "drop")
        packer.take(samples_of(lengths))
        packer.finish()
        return Given(list(iter(packer.next_row, None)))

    wanted = {number: examples async for number, examples in micro_batches(plan, packed())}
    found: dict[int, list[Example]] = {}
    ended: list[int] = []
    async for batch, parts in packed_rows(plan, layout, 8, packed()):
        assert len(parts) == int(layout.processes.max()) + 1
        assert len({len(part.data) for part in parts}) == 1, "all have the same shape"
        assert sum(int(part.weights.sum()) for part in parts) == batch.row_count
        for part in parts:
            received = RowArrays(part.data.copy())
            found.setdefault(batch.local_step, []).extend(received.examples(range(len(part.data))))
        ended += [batch.local_step] * batch.ends_step
    assert ended == list(wanted)

    def plain(examples: list[Example]) -> list[tuple[list[int], list[int] | None, bool]]:
        return sorted(
            (one.tokens.tolist(), None if one.labels is None else one.labels.tolist(), one.position_ids is None)
            for one in examples
        )

    assert {number: plain(examples) for number, examples in found.items()} == {
        number: plain(examples) for number, examples in wanted.items()
    }


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=12), LAYOUTS)
def test_gradients_of_all_processes_add_up_to_that_of_one(documents: list[list[int]], layout: MeshLayout) -> None:
    count = min(len(documents), layout.global_batch_size)
    generator = np.random.default_rng(count)
    rows = RowArrays.zeros(count, 18)
    for row, lengths in enumerate(documents[:count]):
        tokens = generator.integers(0, 256, sum(lengths)).astype("<u2")
        labels = np.where(generator.random(tokens.size) < 0.3, IGNORED_LABEL, tokens.astype(np.int64))
        rows.put(row, TokenBatch(tokens, np.array([0, tokens.size]), labels, sequence_lengths=np.array(lengths)), 0)
    owners = layout.holders.ravel()[layout.row_devices(count)]
    model = NgramModel(TINY)
    start = model.initial_parameters(SEED)

    def of(chosen: list[int]) -> tuple[float, int, Tensors]:
        learner = model.learner()
        learner.load(start)
        loss = learner.accumulate(rows.examples(chosen))
        return loss.finite_nats(), loss.token_count, {name: np.array(one) for name, one in learner.gradient.items()}

    nats, token_count, gradient = of(list(range(count)))
    parts = [of(np.flatnonzero(owners == process).tolist()) for process in range(int(layout.processes.max()) + 1)]
    assert sum(part[1] for part in parts) == token_count
    assert sum(part[0] for part in parts) == pytest.approx(nats, rel=1e-5, abs=1e-5)
    for name, wanted in gradient.items():
        np.testing.assert_allclose(sum(part[2][name] for part in parts), wanted, rtol=1e-4, atol=1e-4)


def test_rows_keep_labels_and_the_boundaries_of_documents() -> None:
    batch = TokenBatch(
        np.arange(10, 20, dtype="<u2"),
        np.array([0, 7, 10]),
        labels=np.array([-100, 11, 12, -100, -100, 15, 16, 17, 18, 19]),
        sequence_lengths=np.array([3, 0, 4, 3]),
    )
    rows = RowArrays.zeros(2, 8)
    rows.put(0, batch, 0)
    rows.put(1, batch, 1)
    assert rows.positions[0].tolist() == [0, 1, 2, 0, 1, 2, 3, -1]
    examples = rows.examples([0, 1])
    assert [example.tokens.tolist() for example in examples] == [[10, 11, 12], [13, 14, 15, 16], [17, 18, 19]]
    assert examples[0].labels is not None
    assert examples[0].labels.tolist() == [-100, 11, 12]
    assert [example.predicted for example in examples] == [2, 2, 3]


def test_rows_keep_position_ids_of_the_data() -> None:
    ids = np.array([4, 5, 6, 0, 1, 0, 1, 2])
    batch = TokenBatch(
        np.arange(8, dtype="<u2"), np.array([0, 5, 8]), position_ids=ids, sequence_lengths=np.array([3, 2, 3])
    )
    rows = RowArrays.zeros(2, 6)
    rows.put(0, batch, 0)
    rows.put(1, batch, 1)
    given = [example.position_ids for example in RowArrays(rows.data.copy()).examples([0, 1])]
    assert [None if one is None else one.tolist() for one in given] == [[4, 5, 6], None, None]


def test_sample_that_no_row_can_hold_is_said() -> None:
    rows = RowArrays.zeros(1, 4)
    with pytest.raises(CorruptData, match="a sample of 5 tokens; a row has room for 4"):
        rows.put(0, TokenBatch.fixed_length(np.zeros(5, dtype="<u2"), 5), 0)
    with pytest.raises(CorruptData, match="token 4294967295; rows hold tokens up to 2147483647"):
        rows.put(0, TokenBatch.fixed_length(np.full(4, 2**32 - 1, dtype="<u4"), 4), 0)
    with pytest.raises(CorruptData, match="position ids from -1 to 2; rows hold those from 0 to 2147483647"):
        rows.put(0, TokenBatch(np.zeros(4, "<u2"), np.array([0, 4]), position_ids=np.arange(-1, 3)), 0)


async def test_data_that_end_early_are_said() -> None:
    plan = RoundPlan(1, (BatchId(0, 7),), 1, (0.1,))
    layout = spread_over({"data": 2}, 1, 4)
    reader = RowReader(layout, 0, 4, Given(await stream([DataIds(0, 4)])))
    with pytest.raises(TrainerFailed, match="the data ended after 5 rows"):
        await reader.read(next(global_batches(plan, 8)))
