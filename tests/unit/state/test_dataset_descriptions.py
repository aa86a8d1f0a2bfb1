"""Descriptions of datasets: what a message says of two that differ."""

from dataclasses import replace

import pytest

from epochal.state.dataset_descriptions import (
    MAX_DESCRIBED_FILES,
    DatasetDescription,
    DescribedFile,
    dataset_difference,
    dataset_in_words,
)


def described(*files: tuple[str, int], **fields: object) -> DatasetDescription:
    shown = tuple(DescribedFile(name, size) for name, size in files[:MAX_DESCRIBED_FILES])
    whole = DatasetDescription("token files", 2, 16, 10, "", len(files), sum(size for _, size in files), shown)
    return replace(whole, **fields)  # type: ignore[arg-type]


RUN = described(("a.bin", 10), ("b.bin", 20))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(RUN, token_size_bytes=4), "tokens of 4 bytes, the run's 2"),
        (replace(RUN, sequence_length=32), "sequences of 32 tokens, the run's 16"),
        (replace(RUN, sample_count=9), "9 samples, the run's 10"),
        (replace(RUN, shuffle="ab12"), "a shuffle, the run's have none"),
        (
            described(("a.bin", 10), ("b.bin", 21)),
            "31 bytes in all, the run's 30; 'b.bin' of 21 bytes, the run's of 20",
        ),
        (
            described(("a.bin", 10)),
            "1 files, the run's 2; 10 bytes in all, the run's 30; no 'b.bin', which the run's have",
        ),
        (
            described(("a.bin", 10), ("c\x1b.bin", 20)),
            "'c\\x1b.bin', which the run's lack; no 'b.bin', which the run's have",
        ),
        (replace(RUN, kind="JSON lines"), "'JSON lines', the run's 'token files'"),
    ],
)
def test_difference_names_what_the_two_have_not_in_common(found: DatasetDescription, words: str) -> None:
    assert dataset_difference(found, RUN) == f"the client's data have {words}"


def test_dataset_is_told_in_words_as_far_as_it_is_described() -> None:
    assert dataset_in_words(described(("a.bin", 10), shuffle="ab12", sample_count=None)) == (
        "token files, tokens of 2 bytes, sequences of 16 tokens, 1 files, 10 bytes in all, shuffled (key ab12), "
        "'a.bin' of 10 bytes"
    )
    assert dataset_in_words(DatasetDescription("dummy samples")) == "dummy samples"


def test_shuffles_are_compared_by_the_name_of_their_key() -> None:
    one, other = replace(RUN, shuffle="ab"), replace(RUN, shuffle="cd")
    assert dataset_difference(one, other) == "the client's data have a shuffle with another key than the run's"
    assert dataset_difference(RUN, other) == "the client's data have no shuffle, the run's have one"


def test_files_beyond_the_listed_ones_are_not_called_missing() -> None:
    many = [(f"{number}.bin", 10) for number in range(MAX_DESCRIBED_FILES + 2)]
    differs = dataset_difference(described(*many), described(*many[1:]))
    assert differs.endswith("'0.bin', which the run's lack")
    assert f"{MAX_DESCRIBED_FILES}.bin" not in differs


def test_unknown_parts_are_not_compared() -> None:
    server = DatasetDescription("a data server", 2, 16, 10)
    assert "what is described of the two is the same" in dataset_difference(server, RUN)
    assert "does not describe" in dataset_difference(None, RUN)
    assert "no member has described" in dataset_difference(RUN, None)


def test_file_would_be_listed_if_all_are_or_before_the_last_that_is() -> None:
    files = tuple(DescribedFile(name, 1) for name in ("a", "b", "d"))
    assert [DatasetDescription("x", file_count=9, files=files).lists(name) for name in ("c", "e")] == [True, False]
    assert DatasetDescription("x", file_count=3, files=files).lists("e")
    assert not DatasetDescription("x", files=files).lists("c")
    assert not DatasetDescription("x", file_count=9).lists("c")
