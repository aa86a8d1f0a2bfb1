"""What `epochal data inspect` counts and draws."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from epochal.data_providers.protocol import DatasetSpec, TokenBatch
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.state.intervals import DataIds
from epochal.tools.inspect import profile
from epochal.tools.inspect.drawings import BAR_CELLS, bar, draw_parts
from epochal.tools.inspect.profile import LengthBucket, TokenCount, profile_of
from epochal.tools.inspect.sample_parts import ELIDED, MAX_PART_CHARACTERS, SamplePart, first_parts

END = 9


def written(folder: Path, *documents: list[int]) -> Path:
    np.array([token for document in documents for token in [*document, END]], "<u2").tofile(folder / "a.bin")
    return folder


def as_text(tokens: object) -> str:
    return "".join(chr(97 + token) for token in tokens)  # type: ignore[attr-defined]


async def test_profile_counts_whole_documents_and_tokens(tmp_path: Path) -> None:
    folder = written(tmp_path, [1], [1, 2], [1, 1, 2, 3, 1], [4] * 3, [5])
    with_end = await profile_of(LocalDataProvider.open(folder, DatasetSpec(2, 2)), END)
    # 17 tokens are 8 samples of 2: the first document has no end before it, the last one is cut off with the tail
    assert (with_end.samples, with_end.tokens, with_end.documents) == (8, 16, 3)
    assert with_end.lengths == (LengthBucket(2, 3, 1), LengthBucket(4, 7, 2))
    assert (with_end.median, with_end.longest, with_end.learnt_tokens) == (4, 6, None)
    assert with_end.most_frequent[0] == TokenCount(1, 5)
    without = await profile_of(LocalDataProvider.open(folder, DatasetSpec(2, 2)))
    assert (without.documents, without.lengths, without.distinct_tokens) == (0, (), 6)


async def test_documents_do_not_go_on_in_a_block_that_is_elsewhere(tmp_path: Path) -> None:
    folder = written(tmp_path, *[[1] * 7] * 4096)
    shuffled = LocalDataProvider.open(folder, DatasetSpec(2, 8, bytes(32)))
    found = await profile_of(shuffled, END)
    assert found.samples == 4096
    assert found.lengths == (LengthBucket(8, 15, found.documents),)


async def test_long_documents_are_counted_as_often_as_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "PROFILE_BYTES", 16 * 2 * 400)  # 16 places of 400 tokens
    folder = written(tmp_path, *[[1] * 9, [1] * 1999] * 1000)
    found = await profile_of(LocalDataProvider.open(folder, DatasetSpec(2, 4)), END)
    assert found.tokens == 16 * 400
    assert 3 <= found.documents <= 20
    counts = {(bucket.least, bucket.most): bucket.count for bucket in found.lengths if bucket.count}
    assert set(counts) == {(8, 15), (1024, 2047)}
    assert abs(counts[8, 15] - counts[1024, 2047]) <= max(counts.values()) // 2 + 1
    assert found.endless == 0


async def test_document_without_end_is_read_on_within_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "PROFILE_BYTES", 16 * 2 * 64)
    monkeypatch.setattr(profile, "MAX_FOLLOWED_BYTES", 4096)
    monkeypatch.setattr(profile, "FOLLOWED_AT_ONCE_BYTES", 1024)
    folder = written(tmp_path, [1], [2] * 100_000)
    provider = LocalDataProvider.open(folder, DatasetSpec(2, 4))
    read = 0
    get_samples = provider.get_samples

    async def counted(place: DataIds) -> TokenBatch:
        nonlocal read
        read += place.count
        return await get_samples(place)

    monkeypatch.setattr(provider, "get_samples", counted)
    found = await profile_of(provider, END)
    assert (found.documents, found.endless) == (0, 1)
    assert read == found.samples + 4096 // 8


def test_parts_of_a_sample_follow_its_labels_within_the_first_document() -> None:
    tokens = np.array([0, 1, 2, 3, 4, 5, 6], "<u2")
    labels = np.array([-100, -100, 2, 3, -100, -100, 6])
    batch = TokenBatch(tokens, np.array([0, 7]), labels, None, np.array([5, 2]))
    parts = (SamplePart("ab", False), SamplePart("cd", True), SamplePart("e", False))
    assert first_parts(batch, as_text) == parts
    plain = TokenBatch(tokens, np.array([0, 3, 7]))
    assert first_parts(plain, as_text) == (SamplePart("abc", True),)
    first_only = TokenBatch(tokens, np.array([0, 7]), np.where(np.arange(7) == 0, -100, tokens))
    assert first_parts(first_only, as_text) == (SamplePart("abcdefg", True),)


def test_long_part_loses_its_middle() -> None:
    tokens = np.zeros(MAX_PART_CHARACTERS + 1, "<u2")
    (part,) = first_parts(TokenBatch(tokens, np.array([0, len(tokens)])), as_text)
    assert len(part.text) == MAX_PART_CHARACTERS + len(ELIDED)


@pytest.mark.parametrize(
    ("value", "drawn"), [(0, ""), (1, "▏"), (500, "█" * (BAR_CELLS // 2)), (1000, "█" * BAR_CELLS)]
)
def test_bar_is_empty_for_nothing_only(value: int, drawn: str) -> None:
    assert bar(value, 1000) == drawn


def test_masked_parts_show_without_colours() -> None:
    console = Console(width=60, no_color=True, record=True, file=io.StringIO())
    console.print(draw_parts([SamplePart("[Why]?", False), SamplePart("So.", True)]))
    assert [line.split() for line in console.export_text().splitlines()] == [["masked", "[Why]?"], ["learnt", "So."]]
