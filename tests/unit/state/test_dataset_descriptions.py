"""Descriptions of datasets: what a message says of two that differ."""

from dataclasses import replace

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


def test_difference_says_both_in_words() -> None:
    other = replace(RUN, files=(DescribedFile("c\x1b.bin", 20, "ab12"),))
    said = dataset_difference(other, RUN)
    assert said.startswith("the client's data are token files, tokens of 2 bytes, ")
    assert "'c\\x1b.bin' of 20 bytes (content ab12…); the run's are token files" in said
    assert "does not describe" in dataset_difference(None, RUN)
    assert "no member has described" in dataset_difference(RUN, None)


def test_dataset_is_told_in_words_as_far_as_it_is_described() -> None:
    assert dataset_in_words(described(("a.bin", 10), shuffle="ab12", sample_count=None)) == (
        "token files, tokens of 2 bytes, sequences of 16 tokens, 1 files, 10 bytes in all, shuffled (key ab12), "
        "'a.bin' of 10 bytes"
    )
    assert dataset_in_words(DatasetDescription("dummy samples")) == "dummy samples"
