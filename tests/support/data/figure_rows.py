"""Rows of a run's history for tests of what keeps them."""

from collections.abc import Sequence
from functools import reduce

from epochal.state.messages.history_rows import RoundFigures, merged

LINEAGE, OTHER_LINEAGE = "ab" * 16, "cd" * 16


def row(number: int, *, late_s: float = 0.0) -> RoundFigures:
    """Return the row of one round. With another `late_s` it is a round of another history."""
    ended_s = 1_800_000_000.25 + 10 * number + late_s
    return RoundFigures(
        number=number,
        rounds=1,
        epoch=number // 4,
        step=number + 1,
        attempt=0,
        version=3 * number + 7,
        started_s=ended_s - 9.5,
        ended_s=ended_s,
        train_s=8.0625,
        witness_s=1.4375,
        applied_rounds=1 if number % 5 else 0,
        loss=4.0 / (number + 1) if number % 5 else None,
        loss_tokens=192 if number % 5 else 0,
        gradient_norm=0.5 + number if number % 5 else None,
        learning_rate=0.001,
        tokens=192 if number % 5 else 0,
        tokens_total=192 * (number + 1),
        members=3,
        ready=3,
        clients=3,
        results=3,
        batches=12,
        applied_batches=12 if number % 5 else 0,
        lost_batches=0 if number % 5 else 12,
        carried_batches=number % 3,
        quarantined_batches=0,
        result_bytes=2100,
    )


def rows(first: int, last: int, *, late_s: float = 0.0) -> list[RoundFigures]:
    """Return the rows of the rounds from number `first` to `last`, the latter included."""
    return [row(number, late_s=late_s) for number in range(first, last + 1)]


def as_one(few: Sequence[RoundFigures]) -> RoundFigures:
    """Return neighbours as one row."""
    return reduce(merged, few)
