"""A sink: one place where a run's figures are kept.

The rule kept here: a sink knows itself how far it has got, and notes a row only once it is kept. So a follower that is
killed anywhere and started again may repeat a row, and loses none.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from epochal.state.errors import EpochalError
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundFigures


class SinkFailed(EpochalError):
    """Figures could not be kept: the disk is full, or the service that takes them fails. Start the command again."""


class FigureSink(Protocol):
    """A place for a run's figures. Calls are blocking, and one at a time."""

    name: str
    """As the command names it."""

    def open(self, run_id: str, lineage: str) -> int:
        """Return the number of the first round of this history that may not be kept yet; 0 if none of it is.

        Args:
            run_id: of the run.
            lineage: of its history; another one begins anew.

        Raises:
            InvalidInput: the place belongs to another run, or is something else.
            SinkFailed: it cannot be opened.
        """
        ...

    def write(self, rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation] = ()) -> None:
        """Write rows in their order, and return once they are kept.

        Args:
            rows: one at least.
            evaluations: kept with the last of them, before whose end they were recorded.

        Raises:
            SinkFailed: they are not; the sink may have kept the first of them.
        """
        ...

    def close(self) -> None:
        """Close the place. What was written is kept whether or not this is called."""
        ...


def plain_name(run_id: str, lineage: str) -> str:
    """Return a name of letters, digits and hyphens for one lineage of a run."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', run_id).strip('-') or 'run'}-{lineage[:12]}"


def place_of(row: RoundFigures) -> int:
    """Return the number of the last round of a row: the point's place on the axis."""
    return row.next_number - 1


def with_evaluations(
    rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation], since_s: float
) -> Iterator[tuple[Sequence[RoundFigures], tuple[Evaluation, ...]]]:
    """Yield the rows in groups, each with the evaluations that were recorded while its last row went on, or before it.

    Args:
        rows: in their order.
        evaluations: of the run.
        since_s: those that were recorded up to then are left out, in seconds since 1970.
    """
    begin = 0
    for place, row in enumerate(rows, 1):
        found = tuple(one for one in evaluations if since_s < one.recorded_s <= row.ended_s)
        since_s = max(since_s, row.ended_s)
        if found or place == len(rows):
            yield rows[begin:place], found
            begin = place


def scalars_of(row: RoundFigures, evaluations: Sequence[Evaluation] = ()) -> dict[str, float]:
    """Return the values of a row by their names, each with its unit; a round without a loss or a norm has none.

    Of evaluations under one name and metric the last one is shown.

    Rows that represent several rounds become means of each round, so that a curve continues where older rounds were
    merged.
    """
    rounds, seconds = row.rounds, row.train_s + row.witness_s
    claimed = {"loss/train_nats_per_token": row.loss, "gradient/norm": row.gradient_norm}
    found: dict[str, float] = {name: value for name, value in claimed.items() if value is not None}
    for one in evaluations:
        of = f"evaluation/{one.name}/{one.metric}"
        found |= {of: one.value, f"{of}_samples": float(one.samples), f"{of}_step": float(one.step)}
        if one.benchmark is not None and one.benchmark.stderr is not None:
            found[f"{of}_stderr"] = one.benchmark.stderr
    return found | {
        "schedule/learning_rate": row.learning_rate,
        "progress/step": float(row.step),
        "progress/epoch": float(row.epoch),
        "progress/tokens_total": float(row.tokens_total),
        "progress/version": float(row.version),
        "progress/branch": float(row.branch),
        "speed/tokens_per_s": row.tokens / seconds if seconds > 0 else 0.0,
        "speed/tokens_per_round": row.tokens / rounds,
        "time/round_train_s": row.train_s / rounds,
        "time/round_witness_s": row.witness_s / rounds,
        "members/all": float(row.members),
        "members/ready": float(row.ready),
        "members/in_round": float(row.clients),
        "results/per_round": row.results / rounds,
        "results/bytes_per_round": row.result_bytes / rounds,
        "data/applied_batches_per_round": row.applied_batches / rounds,
        "data/lost_batches_per_round": row.lost_batches / rounds,
        "data/carried_batches": float(row.carried_batches),
        "data/quarantined_batches": float(row.quarantined_batches),
        "rounds_in_point": float(rounds),
    }
