"""Task encoders: what they leave out or break is counted or named, and their random numbers follow the sample."""

import random
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from epochal.batching.packing.packer import packed
from epochal.batching.packing.samples import EncodedSample, RawSample
from epochal.batching.packing.task_encoder import EncoderContext, SkipSample, TaskEncoder, open_encoder, stateless
from epochal.data_providers.protocol import CorruptData, TokenBatch
from epochal.runtime.permissions import OWNERS
from epochal.state.errors import InvalidInput, TrainerFailed
from tests.support.data.packing import ROW, LongestFirst, Picky, context, packer_of, samples_of
from tests.support.heavy import need_module


def test_skipped_and_failed_samples_are_counted_with_the_next_row() -> None:
    packer = packer_of(encoder=Picky(context()), max_failed_samples=2)
    rows = list(packed(packer, samples_of([3, 1, 5, 1, 3])))
    assert [row.source_count for row in rows] == [5]
    assert (packer.counts.skipped, packer.counts.failed, packer.counts.finished) == (2, 1, 2)
    rows = list(packed(packer_of(encoder=Picky(context()), pool_size=1), samples_of([1, 3, 3])))
    assert [(row.sample_count, row.source_count) for row in rows] == [(1, 1), (0, 2)]


def test_one_failure_more_than_is_tolerated_names_sample_encoder_and_cause() -> None:
    packer = packer_of(encoder=Picky(context()), max_failed_samples=1)
    wanted = r"data index 2: .*support.*packing:Picky\.encode_sample: ZeroDivisionError: five .*max_failed_samples is 1"
    with pytest.raises(CorruptData, match=wanted) as caught:
        list(packed(packer, samples_of([5, 1, 5])))
    assert caught.value.context["data_index"] == 2


def test_seeds_follow_run_stage_and_sample_and_are_put_back() -> None:
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


def test_encoder_that_loads_pytorch_itself_has_its_first_sample_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
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
        (EncodedSample(np.zeros((2, 2), "<u2")), "not a one-dimensional array"),
        (EncodedSample(np.array([-1])), "not a one-dimensional array of unsigned"),
        (EncodedSample(np.array([256], "<u2")), "token 256; the model's vocabulary allows 0 to 255"),
        (EncodedSample(np.zeros(3, "<u2"), np.zeros(2, int)), "2 labels for 3 tokens"),
        (EncodedSample(np.zeros(1, "<u2"), np.array([-1])), "label -1; allowed: 0 to 255, and -100"),
        (EncodedSample(np.zeros(1, "<u2"), FLOATS), "labels of type float64; allowed: integers"),
        (EncodedSample(np.zeros(1, "<u2"), None, FLOATS), "not a one-dimensional array of integers"),
        (EncodedSample(np.zeros(2, "<u2"), None, np.ones((1, 2), int)), "not a one-dimensional array of integers"),
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


class Forgetful(TaskEncoder):
    """Its `__init__` leaves the base class out."""

    def __init__(self, context: EncoderContext) -> None:
        self.seen: list[EncoderContext] = [context]


def test_encoder_that_does_not_call_the_base_class_is_said() -> None:
    with pytest.raises(InvalidInput, match=r"Forgetful' has no context; allowed: an __init__\(context\) that calls"):
        open_encoder(f"{__name__}:Forgetful", EncoderContext("run", 8, 256), OWNERS)
