"""Evaluations: the loss of a run's replica on data that it was not trained on, as it is reported and kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.documents import Count, HexBlake3, HexSha256
from epochal.state.wire_document import WireDocument

MAX_EVALUATION_NAME_CHARS = 32
MAX_EVALUATED_COUNT = 2**53
"""Largest number of samples or tokens of one evaluation: every JSON reader represents it exactly."""
MAX_EVALUATED_LOSS = 1e9
"""Largest magnitude of a loss, in nats per token."""

EVALUATION_NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_EVALUATION_NAME_CHARS - 1}}}$"
EVALUATION_NAME_ALLOWED = (
    f"1 to {MAX_EVALUATION_NAME_CHARS} letters, digits, dots, hyphens and underscores, a letter or digit first"
)
EvaluationName = Annotated[str, Field(pattern=EVALUATION_NAME_PATTERN)]
EvaluatedCount = Annotated[int, Field(ge=1, le=MAX_EVALUATED_COUNT)]
EvaluatedLoss = Annotated[float, Field(ge=-MAX_EVALUATED_LOSS, le=MAX_EVALUATED_LOSS)]


@dataclass(frozen=True, slots=True)
class EvaluationReport(WireDocument):
    """An operator's command computed the loss of the run's checkpoint of this step.

    Attributes:
        name: says which evaluation it is, such as `validation`; one name's losses make a curve.
        step: number of the replica.
        replica_digest: of the replica.
        loss: mean loss in nats per predicted token.
        tokens: predicted tokens.
        samples: samples that the tokens are of.
        data_fingerprint: of the data.
    """

    name: EvaluationName
    step: Count
    replica_digest: HexBlake3
    loss: EvaluatedLoss
    tokens: EvaluatedCount
    samples: EvaluatedCount
    data_fingerprint: HexSha256


@dataclass(frozen=True, slots=True)
class Evaluation(WireDocument):
    """An evaluation in a run's history. See `EvaluationReport` for the fields that both have.

    Attributes:
        recorded_s: when it was reported, in seconds since 1970 on the coordinator's clock.
    """

    name: EvaluationName
    step: Count
    loss: EvaluatedLoss
    tokens: EvaluatedCount
    samples: EvaluatedCount
    data_fingerprint: HexSha256
    recorded_s: float

    @classmethod
    def of(cls, report: EvaluationReport, recorded_s: float) -> "Evaluation":
        """Return the evaluation that was reported at this time."""
        told = report.loss, report.tokens, report.samples, report.data_fingerprint
        return cls(report.name, report.step, *told, recorded_s=recorded_s)


@dataclass(frozen=True, slots=True)
class EvaluationHistory(WireDocument):
    """A run's evaluations in the order in which they were recorded (`GET …/evaluations`)."""

    evaluations: tuple[Evaluation, ...]


def newest_evaluations(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Return the evaluation of the newest replica under each name, the name that was recorded last first."""
    newest: dict[str, Evaluation] = {}
    for found in reversed(evaluations):
        known = newest.setdefault(found.name, found)
        if found.step > known.step:
            newest[found.name] = found
    return tuple(newest.values())
