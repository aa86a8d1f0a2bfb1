"""What an operator's commands take as arguments."""

import pytest

from epochal.coordinator_client.operator import parse_batches
from epochal.state.errors import InvalidInput
from epochal.state.intervals import BatchId


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["17"], (BatchId(17, 17),)),
        (["17-20"], (BatchId(17, 20),)),
        (["3", "17-20"], (BatchId(3, 3), BatchId(17, 20))),
        (["all"], None),
    ],
)
def test_batches_are_numbers_intervals_or_all(texts: list[str], expected: tuple[BatchId, ...] | None) -> None:
    assert parse_batches(texts) == expected


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "20-17", "1_0", "1,2", "all", "9" * 30])
def test_other_batches_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput, match="allowed"):
        parse_batches([text, "4"])
