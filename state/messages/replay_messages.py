"""Messages about replays: a result that a verifier computes again, and how far apart the two are.

`docs/rest-api.md` says who sends which, `docs/verification.md` how they are judged.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from epochal.state.documents import Count, HexBlake3, HexId, HexSha256
from epochal.state.intervals import BatchId
from epochal.state.messages.blob_messages import Lease
from epochal.state.messages.requests import MAX_MESSAGE_CHARS
from epochal.state.messages.state_messages import InnerStates
from epochal.state.model.computed_class import COMPUTED_PATTERN
from epochal.state.wire_document import WireDocument

MAX_DISTANCES = 64
"""Maximum number of distances in one report of a calibration."""

SCORED_PART = 0.15
"""Part of a result that is taken for its score. Of 0.5 a fifth to a quarter of honest results make the loss larger, of
0.15 one to four in a hundred (measured on a small model)."""
MAX_GAIN = 1e6
"""Bound of a score, in nats per token; a loss that is not finite counts as so much worse."""

ComputedClass = Annotated[str, Field(pattern=COMPUTED_PATTERN)]
"""How something was computed: precision and kind of device, such as `float32/cpu` or `bf16/nvidia-h100`."""
Distance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class DataTicket(WireDocument):
    """A verifier's ticket for data servers, which lets it read all of the run's data. Renew after half its time."""

    data_ticket: str
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class LeasedReplay(WireDocument):
    """A result that is leased to a verifier, which computes it again.

    Attributes:
        lease: names the lease.
        expires_in_s: seconds after which it goes to somebody else unless the lease is renewed.
        step, attempt: the round.
        work_sha256: digest of the round's work list.
        assignment: the client's batches.
        result_sha256, size_bytes: of the result.
        replica_digest: of replica `step − 1`, on which the round agreed.
        wanted: the class in which it is to be computed, if the verifier can; None for the verifier's own.
        states: the inner states of the round, both revealed, where clients keep theirs.
    """

    lease: Lease
    expires_in_s: float
    step: Count
    attempt: Count
    client_id: HexId
    work_sha256: HexSha256
    assignment: tuple[BatchId, ...]
    result_sha256: HexSha256
    size_bytes: Count
    replica_digest: HexBlake3
    wanted: ComputedClass | None = None
    states: InnerStates | None = None


@dataclass(frozen=True, slots=True)
class ReplayReport(WireDocument):
    """How far a result is from its replay (`state/replays/replay_distance.py`).

    Attributes:
        step, client_id, result_sha256: of the result.
        excess: how much farther apart they are than the codec explains, as a part of the replay's length.
        norm_ratio: the result's length as a multiple of the replay's.
        cosine: of the angle between them.
        result_class: how the result was computed, as its header says.
        replay_class: how the replay was.
        took_ms: milliseconds that the replay took.
        tokens: of the result's samples, without padding, as the replay counted them; None if it did not.
        state_excess: how far the round's last inner state is from the replay's; None where clients keep none.
    """

    step: Count
    client_id: HexId
    result_sha256: HexSha256
    excess: Distance
    norm_ratio: Distance
    cosine: Annotated[float, Field(ge=-1.001, le=1.001)]
    result_class: ComputedClass
    replay_class: ComputedClass
    took_ms: Count
    tokens: Count | None = None
    state_excess: Distance | None = None


@dataclass(frozen=True, slots=True)
class ScoreReport(WireDocument):
    """The worth of a result, where results are not computed again (`verify.by = "scores"`).

    Attributes:
        step, client_id, result_sha256: of the result.
        gain: by how much `SCORED_PART` of the result lowers the mean loss of held-out samples, in nats per token.
        samples: number of the samples.
        took_ms: milliseconds that the two losses took.
    """

    step: Count
    client_id: HexId
    result_sha256: HexSha256
    gain: Annotated[float, Field(ge=-MAX_GAIN, le=MAX_GAIN)]
    samples: Annotated[int, Field(ge=1)]
    took_ms: Count


@dataclass(frozen=True, slots=True)
class ReplayFailure(WireDocument):
    """Why a verifier cannot compute a result again.

    Attributes:
        kind: its data could not be read, the replica could not be built, or the trainer failed.
    """

    step: Count
    client_id: HexId
    kind: Literal["data", "replica", "trainer"]
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]


@dataclass(frozen=True, slots=True)
class CalibrationReport(WireDocument):
    """Distances between honest repetitions of the same work, by the operator's own machines.

    Attributes:
        result_class, replay_class: how the two of each pair were computed.
        local_steps: of the rounds that were repeated.
        distances: excess distances, one of each pair.
        of_states: whether they are those of inner states after the work.
    """

    result_class: ComputedClass
    replay_class: ComputedClass
    local_steps: Annotated[int, Field(ge=1)]
    distances: Annotated[tuple[Distance, ...], Field(min_length=1, max_length=MAX_DISTANCES)]
    of_states: bool = False


class Likeness(NamedTuple):
    """How like a result is to others, as cosines from −1 to 1; None without any.

    Attributes:
        with_mean: with the weighted mean of the round's other results.
        with_other: the largest with another one of the round.
        with_own: the largest with one of its client's last results.
    """

    with_mean: float | None
    with_other: float | None
    with_own: float | None = None
