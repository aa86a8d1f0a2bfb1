"""Numbers with their nouns and units."""

import pytest

from epochal.state.text.amounts import all_of, counted, shown_bytes


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 byte"), (12, "12 bytes"), (1500, "1.5 KB"), (63_938_000, "63.9 MB"), (4.03e9, "4.03 GB")]
)
def test_bytes_are_shown_with_three_digits(size: float, text: str) -> None:
    assert shown_bytes(size) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 batches"), (1, "1 batch"), (2000, "2,000 batches")])
def test_one_alone_has_the_noun_of_one(count: int, text: str) -> None:
    assert counted(count, "batch", "batches") == text
    assert counted(count, "step") == text.replace("batches", "steps").replace("batch", "step")


def test_everything_has_its_verb() -> None:
    assert [all_of(count, "step") for count in (1, 2, 1200)] == [
        "the only step is",
        "all 2 steps are",
        "all 1,200 steps are",
    ]
