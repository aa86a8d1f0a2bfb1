"""Packing: every sample comes out once, rows follow from the samples alone, and a restored packer goes on exactly."""

import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.packing.packer import Packer, packed
from batching.packing.packer_state import indices_held
from batching.packing.rows import MAX_CANDIDATES, best_fit_decreasing, fill_row, first_fit_decreasing, tail_rows
from batching.packing.samples import EncodedSample, RawSample, raw_samples
from batching.packing.task_encoder import EncoderContext, SkipSample, TaskEncoder, open_encoder, stateless
from data_providers.protocol import IGNORED_LABEL, CorruptData, TokenBatch
from state.config.state_file import PackingConfig
from state.errors import InvalidInput, TrainerFailed
from tests.support.heavy import need_module

ROW = 16
METHODS = ("rolling", "first_fit_decreasing", "best_fit_decreasing", "padded", "encoder")
POLICIES = ("truncate", "split", "drop")


class LongestFirst(TaskEncoder):
    """Puts one or two samples into a row, longest first, and leaves an odd one in the pool while others wait."""

    def slice_batch(self, samples: list[EncodedSample]) -> list[list[EncodedSample]]:
        samples.sort(key=len)
        rows: list[list[EncodedSample]] = []
        while samples:
            row = [samples.pop()]
            if samples and len(row[0]) + len(samples[0]) <= self.context.row_tokens:
                row.append(samples.pop(0))
            if rows and len(row) == 1 and len(row[0]) < self.context.row_tokens:
                continue  # it waits for a companion
            rows.append(row)
        return rows


def context(**changes: Any) -> EncoderContext:
    return EncoderContext("run", **{"row_tokens": ROW, "vocabulary": 256, **changes})


def encoder_for(method: str) -> TaskEncoder:
    return LongestFirst(context()) if method == "encoder" else TaskEncoder(context())


def packer_of(method: str = "rolling", encoder: TaskEncoder | None = None, **config: Any) -> Packer:
    return Packer(PackingConfig.model_validate({"method": method, **config}), encoder or encoder_for(method))


def samples_of(lengths: Sequence[int], first: int = 0) -> Iterator[RawSample]:
    """Sample *i* is *i* again and again, so that a token says whose it is."""
    for index, length in enumerate(lengths, first):
        yield RawSample(index, np.full(length, index % 256, "<u2"))


def documents(row: TokenBatch) -> list[list[int]]:
    assert row.sequence_lengths is not None
    ends = np.cumsum(row.sequence_lengths)[:-1]
    return [part.tolist() for part in np.split(row.input_ids, ends)]


def signature(rows: Sequence[TokenBatch]) -> list[Any]:
    return [(row.source_count, documents(row) if row.sample_count else []) for row in rows]


def skipping(method: str) -> TaskEncoder:
    """An encoder that leaves out samples of 3 tokens, for a method."""

    def encode_sample(self: TaskEncoder, sample: RawSample) -> EncodedSample:
        if len(sample.tokens) == 3:
            raise SkipSample
        return EncodedSample(sample.tokens)

    base = LongestFirst if method == "encoder" else TaskEncoder
    encoder: TaskEncoder = type("Skipping", (base,), {"encode_sample": encode_sample})(context())
    return encoder


lengths_strategy = st.lists(st.integers(0, 3 * ROW), max_size=60)


# Rows


@given(st.lists(st.integers(1, ROW), min_size=1, max_size=10))
def test_row_is_filled_as_no_other_choice_would_and_holds_the_oldest(lengths: list[int]) -> None:
    chosen = fill_row(lengths, ROW)
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    best = max(
        total
        for size in range(len(lengths))
        for others in itertools.combinations(lengths[1:], size)
        if (total := lengths[0] + sum(others)) <= ROW
    )
    assert sum(lengths[position] for position in chosen) == best


def test_row_looks_at_a_bounded_number_of_candidates() -> None:
    assert fill_row([1, *[3] * (MAX_CANDIDATES - 1), 2, 1000], 1 + 3 * MAX_CANDIDATES)[-1] == MAX_CANDIDATES
    assert fill_row([1, *[8] * 500, 3], 4) == [0, 501]


@pytest.mark.parametrize("slicer", [first_fit_decreasing, best_fit_decreasing, tail_rows])
@given(st.lists(st.integers(1, ROW), max_size=40))
def test_slicers_place_every_sample_once_and_need_few_rows(slicer: Any, lengths: list[int]) -> None:
    rows = slicer(lengths, ROW)
    assert sorted(position for row in rows for position in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[position] for position in row) <= ROW for row in rows)
    least = -(-sum(lengths) // ROW)
    assert len(rows) <= 11 / 9 * least + 6 / 9 or least < 2 or len(rows) <= sum(2 * n > ROW for n in lengths) + least


def test_slicers_on_an_example() -> None:
    lengths = [9, 6, 3, 10, 4]
    assert first_fit_decreasing(lengths, ROW) == [[3, 1], [0, 4, 2]]
    assert best_fit_decreasing([8, 5, 7, 4], 12) == [[0, 3], [2, 1]]


# The packer


@given(lengths_strategy, st.sampled_from(METHODS), st.sampled_from(POLICIES), st.integers(1, 12))
def test_packer_brings_every_sample_out_once_or_counts_it(
    lengths: list[int], method: str, oversized: str, pool_size: int
) -> None:
    packer = packer_of(method, pool_size=pool_size, oversized=oversized)
    rows = list(packed(packer, samples_of(lengths)))
    counts = packer.counts
    came_out: dict[int, int] = {}
    for row in rows:
        assert len(row.input_ids) <= ROW
        for document in documents(row) if row.sample_count else []:
            assert len(set(document)) == 1
            came_out[document[0]] = came_out.get(document[0], 0) + len(document)
    if method == "padded":
        assert all(len(row.input_ids) == ROW for row in rows if row.sample_count)
        came_out.pop(0, None)  # paddings are zeros too
    for index, length in enumerate(lengths):
        kept = min(length, ROW) if oversized == "truncate" else 0 if oversized == "drop" and length > ROW else length
        if index or method != "padded":
            assert came_out.get(index, 0) == kept, index
    assert sum(row.source_count or 0 for row in rows) == len(lengths) == counts.samples
    assert counts.finished + counts.empty + counts.dropped == len(lengths)
    assert counts.rows == sum(row.sample_count for row in rows)
    too_long = sum(length > ROW for length in lengths)
    assert {"truncate": counts.truncated, "split": counts.split, "drop": counts.dropped}[oversized] == too_long


@given(lengths_strategy, st.sampled_from(METHODS), st.integers(1, 12), st.lists(st.integers(0, 8), max_size=40))
def test_rows_do_not_depend_on_how_the_samples_arrive(
    lengths: list[int], method: str, pool_size: int, arrivals: list[int]
) -> None:
    def packer() -> Packer:
        return packer_of(method, skipping(method), pool_size=pool_size, oversized="split")

    expected = signature(list(packed(packer(), samples_of(lengths))))
    slow, left, rows = packer(), list(samples_of(lengths)), []
    for count in itertools.chain(arrivals, itertools.repeat(len(lengths))):
        arriving = iter(left[:count])
        if not slow.take(arriving):
            left = left[count:]
            if not left:
                slow.finish()
        else:
            left = [*arriving, *left[count:]]
        row = slow.next_row()
        if row is not None:
            rows.append(row)
        elif not left and not slow.wanted:
            break
    assert signature(rows) == expected


@given(lengths_strategy, st.sampled_from(METHODS), st.integers(1, 12))
def test_pool_keeps_its_bound_and_as_many_samples_are_fetched_as_left(
    lengths: list[int], method: str, pool_size: int
) -> None:
    packer, samples = packer_of(method, skipping(method), pool_size=pool_size, oversized="drop"), samples_of(lengths)
    bound = 1 if method == "padded" else pool_size
    assert (packer.held, packer.wanted) == (0, bound)
    while packer.take(samples):
        assert (packer.held, packer.wanted) == (bound, 0)
        before = packer.counts.finished
        assert packer.next_row() is not None
        left = packer.counts.finished - before
        assert left > 0
        assert (packer.held, packer.wanted) == (bound - left, left)


def test_no_sample_waits_for_more_rows_than_the_pool_holds_samples() -> None:
    generator = np.random.default_rng(5)
    lengths = np.clip(generator.lognormal(1.5, 1.0, 4000).astype(int), 1, ROW).tolist()
    encoder = TaskEncoder(context(vocabulary=None))
    packer = packer_of("rolling", encoder, pool_size=32)
    entered: dict[int, int] = {}

    def counted() -> Iterator[RawSample]:
        for index, length in enumerate(lengths):
            entered[index] = packer.counts.rows
            yield RawSample(index, np.full(length, index, "<u2"))

    waits = [
        number - entered[document[0]]
        for number, row in enumerate(packed(packer, counted()))
        for document in documents(row)
    ]
    assert len(waits) == 4000
    assert 1 < max(waits) < 32


def test_rolling_fills_rows_where_flushing_leaves_gaps() -> None:
    generator = np.random.default_rng(1)
    row, count = 4096, 3000
    lengths = np.clip(generator.lognormal(np.log(926) - 0.32, 0.8, count).astype(int), 1, row).tolist()

    def fill(method: str, pool_size: int) -> float:
        packer = packer_of(method, TaskEncoder(context(row_tokens=row)), pool_size=pool_size)
        rows = sum(1 for _ in packed(packer, samples_of(lengths)))
        return float(sum(lengths) / rows / row)

    assert fill("rolling", 64) >= 0.99 > fill("best_fit_decreasing", 64)
    assert fill("rolling", 256) >= 0.997


def test_rows_of_a_stream_are_these_on_every_machine() -> None:
    lengths = [int(value) % 13 + 1 for value in np.cumsum(np.arange(30) ** 2)]
    rows = [
        [document[0] for document in documents(row)]
        for row in packed(packer_of("rolling", pool_size=6), samples_of(lengths))
    ]
    assert rows == GOLDEN_ROWS


GOLDEN_ROWS = [
    [0, 1, 2, 3, 4],
    [5, 6, 7],
    [8, 12, 13],
    [9, 14],
    [10, 16, 17],
    [11, 19],
    [15, 21],
    [18, 20, 25],
    [22, 26, 27],
    [23, 28],
    [24, 29],
]


def test_row_carries_positions_documents_and_labels_masked_at_boundaries() -> None:
    samples = [
        RawSample(0, np.array([7, 8, 9], "<u2")),
        RawSample(1, np.array([1, 2], "<u2"), labels=np.array([1, IGNORED_LABEL])),
        RawSample(2, np.array([5, 6, 3, 4], "<u2"), sequence_lengths=np.array([2, 2])),
    ]
    (row,) = packed(packer_of(), iter(samples))
    assert row.input_ids.tolist() == [7, 8, 9, 1, 2, 5, 6, 3, 4]
    assert row.sequence_lengths is not None
    assert row.sequence_lengths.tolist() == [3, 2, 2, 2]
    assert row.position_ids is not None
    assert row.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 1]
    assert row.labels is not None
    ignored = IGNORED_LABEL
    assert row.labels.tolist() == [ignored, 8, 9, ignored, ignored, ignored, 6, ignored, 4]
    assert row.source_count == 3


def test_split_sample_counts_once_and_its_pieces_keep_documents_and_labels() -> None:
    labels = np.arange(20)
    labels[17] = IGNORED_LABEL
    raw = RawSample(3, np.arange(20, dtype="<u2"), labels, np.array([10, 10]))
    packer = packer_of(oversized="split", pool_size=4)
    first, second = packed(packer, iter([raw]))
    assert first.input_ids.tolist() + second.input_ids.tolist() == list(range(20))
    assert (first.source_count, second.source_count) == (0, 1)
    assert first.sequence_lengths is not None
    assert first.sequence_lengths.tolist() == [10, 6]
    assert second.labels is not None
    assert second.labels.tolist() == [IGNORED_LABEL, IGNORED_LABEL, 18, 19]
    assert (packer.counts.split, packer.counts.finished) == (1, 1)


def test_oversized_sample_is_an_error_by_default_and_says_what_is_allowed() -> None:
    packer = packer_of()
    with pytest.raises(CorruptData, match=r'data index 1 has 17 tokens, a row 16.*allowed: "truncate"') as caught:
        list(packed(packer, samples_of([4, 17])))
    assert caught.value.context["data_index"] == 1


def test_packer_takes_no_sample_that_it_does_not_want() -> None:
    packer, samples = packer_of(pool_size=2), samples_of([1, 1, 1])
    assert packer.take(samples)
    assert packer.take(samples)
    assert [raw.index for raw in samples] == [2]
    packer.finish()
    assert packer.take(samples_of([1]))
    assert packer.counts.samples == 2


# Encoders of users


class Picky(TaskEncoder):
    """Skips samples of 3 tokens, fails on those of 5, and encodes the others with noise."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        if len(sample.tokens) == 3:
            raise SkipSample
        if len(sample.tokens) == 5:
            raise ZeroDivisionError("five")
        noise = [random.randrange(100), int(np.random.randint(100)), self.rng.randrange(100)]
        return EncodedSample(np.array([sample.index, *noise], "<u2"))


def test_skipped_and_failed_samples_are_counted_and_reported_with_the_next_row() -> None:
    packer = packer_of(encoder=Picky(context()), max_failed_samples=2)
    rows = list(packed(packer, samples_of([3, 1, 5, 1, 3])))
    assert [row.source_count for row in rows] == [5]
    assert (packer.counts.skipped, packer.counts.failed, packer.counts.finished) == (2, 1, 2)
    rows = list(packed(packer_of(encoder=Picky(context()), pool_size=1), samples_of([1, 3, 3])))
    assert [(row.sample_count, row.source_count) for row in rows] == [(1, 1), (0, 2)]


def test_one_failure_more_than_is_tolerated_names_sample_encoder_and_cause() -> None:
    packer = packer_of(encoder=Picky(context()), max_failed_samples=1)
    wanted = r"data index 2: .*test_packing:Picky\.encode_sample: ZeroDivisionError: five .*max_failed_samples is 1"
    with pytest.raises(CorruptData, match=wanted) as caught:
        list(packed(packer, samples_of([5, 1, 5])))
    assert caught.value.context["data_index"] == 2


def test_seeds_follow_run_stage_and_sample_and_leave_the_generators_as_they_were() -> None:
    def noise(run_id: str, indices: Sequence[int]) -> list[list[int]]:
        encoder = Picky(EncoderContext(run_id, ROW))
        found = []
        for index in indices:
            encoder.current_sample_index = index
            found.append(encoder.encode_sample(RawSample(index, np.zeros(1, "<u2"))).input_ids.tolist()[1:])
        return found

    random.seed(1)
    np.random.seed(1)
    before = noise("a", [5, 6, 7])
    drawn = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    assert drawn == (random.random(), np.random.random())
    assert noise("a", [7, 6, 5]) == before[::-1]
    assert len({tuple(part) for part in before + noise("b", [5, 6, 7])}) == 6
    assert before == GOLDEN_NOISE


def test_first_sample_of_an_encoder_that_loads_pytorch_itself_is_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    import torch

    class Draws(TaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: RawSample) -> EncodedSample:
            monkeypatch.setitem(sys.modules, "torch", torch)  # what `import torch` does in a process without it
            if int(torch.randint(2, (1,))):
                raise SkipSample
            return EncodedSample(torch.randint(256, (4,)).numpy().astype("<u2"))

    def drawn() -> list[list[int]]:
        return [row.input_ids.tolist() for row in packed(packer_of("padded", Draws(context())), samples_of([1] * 12))]

    wanted = drawn()
    for seed in range(3):
        torch.manual_seed(seed)
        monkeypatch.delitem(sys.modules, "torch")
        assert drawn() == wanted


GOLDEN_NOISE = [[48, 1, 96], [81, 11, 93], [38, 26, 71]]


class Broken(TaskEncoder):
    """Does whatever a test asks for."""

    rows: ClassVar[Any] = None
    row: ClassVar[Any] = None

    def slice_batch(self, samples: list[EncodedSample]) -> list[list[EncodedSample]]:
        answer: list[list[EncodedSample]] = self.rows(samples)
        return answer

    def batch(self, samples: list[EncodedSample]) -> TokenBatch:
        answer: TokenBatch = self.row(samples) if self.row else super().batch(samples)
        return answer


def _fails(samples: list[EncodedSample]) -> Any:
    raise KeyError("caption")


@pytest.mark.parametrize(
    ("rows", "row", "message"),
    [
        (_fails, None, r"Broken\.slice_batch failed: KeyError: 'caption'"),
        (lambda samples: map(_fails, samples), None, r"Broken\.slice_batch failed: KeyError: 'caption'"),
        (lambda samples: 5, None, "returned 5; allowed: a list of lists"),
        (lambda samples: [], None, "returned no row for a full pool"),
        (lambda samples: [samples, []], None, "returned an empty row"),
        (lambda samples: [samples[:1], samples[:1]], None, "returned data index 0 twice"),
        (lambda samples: [["x"]], None, "returned data index 'x' twice, or it is not of the pool"),
        (lambda samples: [samples], None, "made a row of 20 tokens; at most 16"),
        (lambda samples: [[sample] for sample in samples], _fails, r"Broken\.batch failed: KeyError"),
        (lambda samples: [[sample] for sample in samples], lambda samples: None, r"Broken\.batch returned None"),
        (
            lambda samples: [[sample] for sample in samples],
            lambda samples: TokenBatch.fixed_length(np.zeros(20, "<u2"), 10),
            "returned 2 samples, 20 tokens; allowed: a TokenBatch of one sample of at most 16",
        ),
    ],
)
def test_encoder_that_breaks_its_contract_is_named(rows: Any, row: Any, message: str) -> None:
    encoder = type("Broken", (Broken,), {"rows": staticmethod(rows), "row": row and staticmethod(row)})(context())
    with pytest.raises(TrainerFailed, match=message):
        list(packed(packer_of("encoder", encoder, pool_size=2), samples_of([10, 10])))


def test_slice_batch_may_yield_its_rows_and_loses_nothing() -> None:
    def yields(samples: list[EncodedSample]) -> Any:
        yield (sample for sample in samples[:1])
        yield from ([sample] for sample in samples[2:])

    encoder = type("Broken", (Broken,), {"rows": staticmethod(yields)})(context())
    rows = list(packed(packer_of("encoder", encoder, pool_size=3), samples_of([1, 2, 3, 4, 5])))
    assert sum(row.source_count or 0 for row in rows) == 5
    assert sorted(len(row.input_ids) for row in rows) == [1, 2, 3, 4, 5]


FLOATS: Any = np.ones(1)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (None, "returned NoneType; allowed: an EncodedSample"),
        (EncodedSample(np.zeros((2, 2), "<u2")), "no one-dimensional array"),
        (EncodedSample(np.array([-1])), "no one-dimensional array of unsigned"),
        (EncodedSample(np.array([256], "<u2")), "token 256; the model's vocabulary allows 0 to 255"),
        (EncodedSample(np.zeros(3, "<u2"), np.zeros(2, int)), "2 labels for 3 tokens"),
        (EncodedSample(np.zeros(1, "<u2"), np.array([-1])), "label -1; allowed: 0 to 255, and -100"),
        (EncodedSample(np.zeros(1, "<u2"), FLOATS), "labels of type float64; allowed: integers"),
        (EncodedSample(np.zeros(1, "<u2"), None, FLOATS), "no one-dimensional array of integers"),
        (EncodedSample(np.zeros(2, "<u2"), None, np.ones((1, 2), int)), "no one-dimensional array of integers"),
        (EncodedSample(np.zeros(3, "<u2"), None, np.array([1, 1])), "sequence_lengths do not add up to 3"),
    ],
)
def test_what_is_no_sample_is_a_failure_of_its_data_index(sample: Any, message: str) -> None:
    encoder = type("Odd", (TaskEncoder,), {"encode_sample": lambda self, raw: sample})(context())
    with pytest.raises(CorruptData, match=message):
        list(packed(packer_of(encoder=encoder), samples_of([1])))


def test_method_and_encoder_must_go_together() -> None:
    with pytest.raises(InvalidInput, match=r'LongestFirst has a slice_batch, and packing.method is "rolling"'):
        packer_of("rolling", LongestFirst(context()))
    with pytest.raises(InvalidInput, match=r'TaskEncoder has no slice_batch, and packing.method is "encoder"'):
        packer_of("encoder", TaskEncoder(context()))


# Saving and restoring


class StatelessLongestFirst(LongestFirst):
    """The same, saved and restored with noise in its samples."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        if len(sample.tokens) == 3:
            raise SkipSample
        return EncodedSample(np.concatenate([sample.tokens, [self.rng.randrange(256)]]).astype("<u2"))


@given(lengths_strategy, st.sampled_from(METHODS), st.sampled_from(POLICIES), st.integers(1, 12), st.integers(0, 50))
def test_restored_packer_yields_exactly_the_remaining_rows(
    lengths: list[int], method: str, oversized: str, pool_size: int, after: int
) -> None:
    def encoder() -> TaskEncoder:
        return StatelessLongestFirst(context()) if method == "encoder" else TaskEncoder(context())

    config = PackingConfig.model_validate({"method": method, "oversized": oversized, "pool_size": pool_size})
    packer = Packer(config, encoder())
    rows = packed(packer, samples_of(lengths))
    list(itertools.islice(rows, after))
    state = json.loads(json.dumps(packer.state()))
    rest = signature(list(rows))

    raw = list(samples_of(lengths))
    restored = Packer.restored(config, encoder(), state, (raw[index] for index in indices_held(state)))
    assert len(indices_held(state)) <= (1 if method == "padded" else pool_size)
    assert signature(list(packed(restored, iter(raw[state["counts"]["samples"] :])))) == rest
    assert asdict(restored.counts) == asdict(packer.counts)


@pytest.mark.parametrize(
    ("config", "encoder", "message"),
    [
        ({"pool_size": 8}, TaskEncoder(context()), "pool_size was 4 and is 8"),
        ({"pool_size": 4, "oversized": "drop"}, TaskEncoder(context()), "oversized was 'split' and is 'drop'"),
        ({"pool_size": 4}, TaskEncoder(context(row_tokens=8)), "row_tokens was 16 and is 8"),
        ({"pool_size": 4}, Picky(context()), "task_encoder was 'batching.*TaskEncoder' and is 'tests.*Picky'"),
        ({"pool_size": 4}, type("V", (TaskEncoder,), {"version": "2"})(context()), "task_encoder_version was '1'"),
    ],
)
def test_state_of_another_configuration_is_refused_by_what_changed(
    config: dict[str, Any], encoder: TaskEncoder, message: str
) -> None:
    packer = packer_of(pool_size=4, oversized="split")
    next(packed(packer, samples_of([5] * 9)))
    with pytest.raises(InvalidInput, match=message):
        Packer.restored(PackingConfig(**{"oversized": "split", **config}), encoder, packer.state(), ())


def test_damaged_state_is_refused_and_an_encoder_with_a_state_is_not_saved() -> None:
    packer = packer_of(pool_size=4)
    packer.take(samples_of([5, 5]))
    state = packer.state()
    damages: list[dict[str, Any]] = [{"format": "x"}, {"pool": [[0]]}, {"pool": 3}, {"counts": {}}, {"pool": [[9, 0]]}]
    for damage in damages:
        with pytest.raises(InvalidInput, match=r"saved state"):
            Packer.restored(PackingConfig(pool_size=4), TaskEncoder(context()), state | damage, samples_of([5, 5]))
    with pytest.raises(InvalidInput, match="saved state is damaged"):
        indices_held({"pool": 3})
    stateful = type("Stateful", (TaskEncoder,), {"encode_sample": lambda self, raw: EncodedSample(raw.tokens)})
    with pytest.raises(InvalidInput, match=r"encode_sample is not marked @stateless"):
        packer_of(encoder=stateful(context())).state()


# Raw samples


def test_raw_samples_are_cut_from_a_batch_with_their_own_documents() -> None:
    batch = TokenBatch(
        np.arange(9, dtype="<u2"),
        np.array([0, 4, 4, 9]),
        labels=np.arange(9),
        sequence_lengths=np.array([1, 3, 0, 2, 0, 3]),
    )
    found = list(raw_samples(batch, iter([10, 11, 20])))
    assert [(raw.index, raw.tokens.tolist()) for raw in found] == [(10, [0, 1, 2, 3]), (11, []), (20, [4, 5, 6, 7, 8])]
    assert [[] if raw.sequence_lengths is None else raw.sequence_lengths.tolist() for raw in found] == [
        [1, 3],
        [],
        [2, 3],
    ]
    assert found[2].labels is not None
    assert found[2].labels.tolist() == [4, 5, 6, 7, 8]


class Forgetful(TaskEncoder):
    """Its `__init__` leaves the base class out."""

    def __init__(self, context: EncoderContext) -> None:
        self.seen: list[EncoderContext] = [context]


def test_encoder_that_does_not_call_the_base_class_is_said() -> None:
    with pytest.raises(InvalidInput, match=r"Forgetful' has no context; allowed: an __init__\(context\) that calls"):
        open_encoder(f"{__name__}:Forgetful", EncoderContext("run", 8, 256))
