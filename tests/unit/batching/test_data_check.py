"""A look at some of a run's data: what is wrong with all of them is a problem, with a little of them a note."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from epochal.batching.data_check import LOOK_BYTES, MAX_PLACES, SYSTEMATIC_PLACES, DataFindings, DataNeeds, look_at_data
from epochal.batching.packing.packed_batches import Packing
from epochal.data_providers.mixes.mixture import MixPhase
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.protocol import (
    CorruptData,
    DataProvider,
    DatasetSpec,
    Rejected,
    SourceUnavailable,
    TokenBatch,
)
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.intervals import DataIds
from tests.support.data.data_files import open_lines
from tests.support.data.states import state_file

SEQ_LEN = 16
COUNT = 400
VOCABULARY = 256
Change = Callable[[npt.NDArray[Any]], None]


def needs(vocabulary: int | None = VOCABULARY, packing: Packing | None = None, length: int = SEQ_LEN) -> DataNeeds:
    return DataNeeds(length, vocabulary, packing, timeout_s=5.0)


def provider_of(folder: Path, tokens: npt.NDArray[Any], size_bytes: int = 2) -> LocalDataProvider:
    folder.mkdir(exist_ok=True)
    tokens.tofile(folder / "a.bin")
    return LocalDataProvider.open(folder, DatasetSpec(size_bytes, SEQ_LEN))


def text(dtype: str = "<u2") -> npt.NDArray[Any]:
    return (np.arange(COUNT * SEQ_LEN) * 7 % 255 + 1).astype(dtype)


class Recorded(DummyDataProvider):
    """Made-up samples that note what they are asked for; `answer` replaces an answer."""

    def __init__(self, answer: Exception | None = None, length: int = SEQ_LEN, count: int | None = None) -> None:
        super().__init__(DatasetSpec(2, length))
        self.asked: list[DataIds] = []
        self.answer = answer
        self.sequence_count = count  # type: ignore[assignment]

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        self.asked.append(data_ids)
        if self.answer is not None:
            raise self.answer
        return await super().get_samples(data_ids)


async def looked_at(provider: DataProvider, wanted: DataNeeds | None = None) -> DataFindings:
    return await look_at_data(provider, wanted or needs())


async def test_bytes_have_neither_problems_nor_notes(tmp_path: Path) -> None:
    found = await looked_at(provider_of(tmp_path, text()))
    assert (found.problems, found.notes, found.largest_token) == ([], [], 255)


async def test_problem_names_token_place_file_and_what_is_allowed(tmp_path: Path) -> None:
    found = await looked_at(provider_of(tmp_path, np.full(COUNT * SEQ_LEN, 42_749, "<u2")))
    (problem,) = found.problems
    assert "data index 0 has token 42749 at position 0; the model's vocabulary allows 0 to 255" in problem
    assert "sequence 0 of a.bin" in problem
    assert "wrong at 8 of the 8 places" in problem
    assert found.largest_token == 42_749


async def test_one_bad_sequence_among_many_is_a_note(tmp_path: Path) -> None:
    tokens = text()
    tokens[3] = 999
    found = await looked_at(provider_of(tmp_path, tokens))
    assert found.problems == []
    assert "token 999 at position 3" in found.notes[0]


async def test_a_token_that_comes_up_everywhere_is_a_problem(tmp_path: Path) -> None:
    tokens = text()
    tokens[::300] = VOCABULARY
    assert (await looked_at(provider_of(tmp_path, tokens))).problems


async def test_lone_sequence_that_is_bad_is_a_problem(tmp_path: Path) -> None:
    assert (await looked_at(provider_of(tmp_path, np.full(SEQ_LEN, 999, "<u2")))).problems


async def test_any_token_is_allowed_without_a_vocabulary(tmp_path: Path) -> None:
    found = await looked_at(provider_of(tmp_path, np.full(COUNT * SEQ_LEN, 42_749, "<u2")), needs(None))
    assert (found.problems, found.notes) == ([], [])


async def test_first_and_last_samples_are_read_and_little_between() -> None:
    provider = Recorded(count=100_000)
    await looked_at(provider)
    assert (provider.asked[0].start, provider.asked[-1].end) == (0, 99_999)
    assert len(provider.asked) == MAX_PLACES


@pytest.mark.parametrize("count", [1, 2, 7, 9, 33, None])
@pytest.mark.parametrize("length", [1, 2048, 1_000_000])
async def test_what_is_read_is_bounded_and_exists(count: int | None, length: int) -> None:
    provider = Recorded(length=length, count=count)
    await looked_at(provider, needs(length=length))
    read = sum(ids.count for ids in provider.asked)
    assert read <= SYSTEMATIC_PLACES or read * length * 4 <= LOOK_BYTES
    assert count is None or max(ids.end for ids in provider.asked) < count


async def test_source_that_does_not_answer_is_left_to_the_caller() -> None:
    with pytest.raises(SourceUnavailable):
        await looked_at(Recorded(SourceUnavailable("later")))


async def test_source_that_serves_no_such_samples_is_not_judged() -> None:
    found = await looked_at(Recorded(Rejected("not yours")))
    assert (found.problems, found.notes) == ([], [])


async def test_data_that_are_corrupt_everywhere_are_a_problem() -> None:
    (problem,) = (await looked_at(Recorded(CorruptData("a checksum differs")))).problems
    assert problem.startswith("a checksum differs")


async def test_every_source_of_a_mix_is_looked_at_and_named(tmp_path: Path) -> None:
    good = provider_of(tmp_path / "good", text())
    bad = provider_of(tmp_path / "bad", np.full(COUNT * SEQ_LEN, 999, "<u2"))
    mix = WeightedDataProvider([Weighted("0 (good)", good, 1000.0), Weighted("1 (bad)", bad, 1.0)])
    (problem,) = (await looked_at(mix)).problems
    assert problem.startswith("source 1 (bad) of the mix: data index 0 has token 999")


async def test_records_and_tokens_of_a_later_phase_are_found_at_once(tmp_path: Path) -> None:
    tokens = provider_of(tmp_path / "tokens", text())
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    records = await open_lines(tmp_path / "a.jsonl")
    sources = [Weighted("tokens", tokens), Weighted("chat", records)]
    mix = WeightedDataProvider(sources, [MixPhase(0, (1, 0)), MixPhase(90, (1, 1))])
    problems = (await look_at_data(mix, needs(None, packing()))).problems
    assert len(problems) == 1
    assert "from data index 90 on: source chat holds JSON records and source tokens" in problems[0]


def packing(**overrides: Any) -> Packing:
    made = Packing.of(state_file(model__LLM__data_type="Finetuning", **overrides), VOCABULARY, InlineWorker(), OWNERS)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ('{"input_ids": [1, 999]}', "token 999; the model's vocabulary allows 0 to 255"),
        ('{"question": "what"}', "data index 0 is a record of question"),
        ("not json", "data index 0 is not JSON"),
        ('{"text": "' + "a" * 99 + '"}', 'packing.oversized is "error"'),
    ],
)
async def test_records_are_encoded_as_in_a_round(tmp_path: Path, record: str, said: str) -> None:
    (tmp_path / "train.jsonl").write_text(f"{record}\n" * COUNT)
    (problem,) = (await looked_at(await open_lines(tmp_path), needs(packing=packing()))).problems
    assert said in problem


async def test_records_that_the_run_tolerates_are_no_problem(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"x": 1}\n' * COUNT)
    tolerant = packing(packing__max_failed_samples=16)
    assert (await looked_at(await open_lines(tmp_path), needs(packing=tolerant))).problems == []


async def test_records_for_a_run_that_does_not_pack_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n' * COUNT)
    (problem,) = (await looked_at(await open_lines(tmp_path))).problems
    assert 'allowed: with model.LLM.data_type = "Finetuning"' in problem
