"""Evaluations of a run's replicas, as they are reported and kept: losses on held-out data, and benchmarks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict, JsonValue

from epochal.state.documents import Count, HexBlake3, HexSha256
from epochal.state.wire_document import WireDocument

MAX_EVALUATION_NAME_CHARS = 64
MAX_EVALUATED_COUNT = 2**53
"""Largest number of samples or tokens of one evaluation: every JSON reader represents it exactly."""
MAX_EVALUATED_LOSS = 1e9
"""Largest magnitude of a loss, in nats per token, or of a benchmark's figure."""

EVALUATION_NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_EVALUATION_NAME_CHARS - 1}}}$"
EVALUATION_NAME_ALLOWED = (
    f"1 to {MAX_EVALUATION_NAME_CHARS} letters, digits, dots, hyphens and underscores, a letter or digit first"
)
EvaluationName = Annotated[str, Field(pattern=EVALUATION_NAME_PATTERN)]
LOSS = "loss"
"""The metric of an evaluation that is no benchmark."""
EvaluatedCount = Annotated[int, Field(ge=1, le=MAX_EVALUATED_COUNT)]
EvaluatedLoss = Annotated[float, Field(ge=-MAX_EVALUATED_LOSS, le=MAX_EVALUATED_LOSS)]
StandardError = Annotated[float, Field(ge=0, le=MAX_EVALUATED_LOSS)]


@dataclass(frozen=True, slots=True)
class Benchmark(WireDocument):
    """A figure of a benchmark, a task of lm_eval by whose name the evaluation is called.

    Attributes:
        metric: name of the figure, such as `acc_norm`.
        value: mean over the samples.
        higher_is_better: which of two values is the better one; None where the task does not say.
        stderr: standard error of the mean; None where the task has none.
    """

    metric: EvaluationName
    value: EvaluatedLoss
    higher_is_better: bool | None = None
    stderr: StandardError | None = None


class _Kind:
    """Tells a loss from a benchmark."""

    __slots__ = ()
    name: str
    loss: float | None
    tokens: int | None
    benchmark: Benchmark | None

    def __post_init__(self) -> None:
        """Raise `ValueError` unless it is either a loss with its tokens or a benchmark."""
        if [self.loss is None, self.tokens is None] != [self.benchmark is not None] * 2:
            raise ValueError("an evaluation has either a loss and tokens, or a benchmark")

    @property
    def metric(self) -> str:
        """The name of the figure: `loss`, or that of the benchmark."""
        return LOSS if self.benchmark is None else self.benchmark.metric

    @property
    def value(self) -> float:
        """The figure: the loss, or that of the benchmark."""
        return (self.loss or 0.0) if self.benchmark is None else self.benchmark.value

    @property
    def title(self) -> str:
        """The name; of a benchmark, with the metric."""
        return self.name if self.benchmark is None else f"{self.name} {self.metric}"

    @property
    def shown_value(self) -> str:
        """The figure for people, with its standard error where it has one."""
        found = None if self.benchmark is None else self.benchmark.stderr
        return f"{self.value:.3f}" if found is None else f"{self.value:.3f} ± {found:.3f}"

    @property
    def key(self) -> tuple[str, str]:
        """Name and metric: what belongs to one curve."""
        return self.name, self.metric


_NULL: JsonDict = {"type": "null"}
_KINDS: list[JsonValue] = [
    {"properties": {"loss": {"type": "number"}, "tokens": {"type": "integer"}, "benchmark": _NULL}},
    {"properties": {"loss": _NULL, "tokens": _NULL, "benchmark": {"type": "object"}}, "required": ["benchmark"]},
]
"""What `_Kind` tells, as a JSON schema says it."""


@dataclass(frozen=True, slots=True)
class EvaluationReport(_Kind, WireDocument):
    """An operator's command evaluated the run's checkpoint of this step.

    Attributes:
        name: says which evaluation it is, such as `validation`, or the benchmark's task; the figures of one name and
            metric make a curve.
        step: number of the replica.
        replica_digest: of the replica.
        loss: mean loss in nats per predicted token; None for a benchmark.
        tokens: predicted tokens; None for a benchmark.
        samples: samples that the figure is of.
        data_fingerprint: of the data; of a benchmark, the SHA-256 of what decides its figure.
        benchmark: its figure; None for a loss.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {
        **WireDocument.__pydantic_config__,
        "json_schema_extra": {"oneOf": _KINDS},
    }
    name: EvaluationName
    step: Count
    replica_digest: HexBlake3
    loss: EvaluatedLoss | None
    tokens: EvaluatedCount | None
    samples: EvaluatedCount
    data_fingerprint: HexSha256
    benchmark: Benchmark | None = None


@dataclass(frozen=True, slots=True)
class Evaluation(_Kind, WireDocument):
    """An evaluation in a run's history. See `EvaluationReport` for the fields that both have.

    Attributes:
        recorded_s: when it was reported, in seconds since 1970 on the coordinator's clock.
        is_dropped: whether the run went back later, so that its replica is no part of the run any more.
    """

    name: EvaluationName
    step: Count
    loss: EvaluatedLoss | None
    tokens: EvaluatedCount | None
    samples: EvaluatedCount
    data_fingerprint: HexSha256
    recorded_s: float
    benchmark: Benchmark | None = None
    is_dropped: bool = False

    def is_of(self, other: "Evaluation") -> bool:
        """Return whether both are of one name, metric and replica of the run."""
        return (self.key, self.step, self.is_dropped) == (other.key, other.step, other.is_dropped)

    @classmethod
    def of(cls, report: EvaluationReport, recorded_s: float) -> "Evaluation":
        """Return the evaluation that was reported at this time."""
        figures = report.loss, report.tokens, report.samples, report.data_fingerprint
        return cls(report.name, report.step, *figures, recorded_s=recorded_s, benchmark=report.benchmark)


@dataclass(frozen=True, slots=True)
class EvaluationHistory(WireDocument):
    """A run's evaluations in the order in which they were recorded (`GET …/evaluations`)."""

    evaluations: tuple[Evaluation, ...]


def losses_among(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Return the evaluations that are losses of the run's own replicas."""
    return tuple(one for one in evaluations if one.benchmark is None and not one.is_dropped)


def benchmarks_among(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Return the evaluations that are benchmarks of the run's own replicas."""
    return tuple(one for one in evaluations if one.benchmark is not None and not one.is_dropped)


def newest_evaluations(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Return the evaluation of the newest replica of each name and metric, that which was recorded last first."""
    newest: dict[tuple[str, str], Evaluation] = {}
    for found in reversed([one for one in evaluations if not one.is_dropped]):
        known = newest.setdefault(found.key, found)
        if found.step > known.step:
            newest[found.key] = found
    return tuple(newest.values())
