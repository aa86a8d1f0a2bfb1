"""Verification of a run's results: replays that are open, and what earlier ones and calibrations have shown.

The rule kept here: what is kept is bounded, and nothing waits for a replay. One that nobody makes is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from epochal.coordinator.machine.parts.persistent_map import Mapped
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import ReplayReport
from epochal.state.wire import Blake3, ClientId, Sha256
from epochal.state.wire_document import WireDocument

REPORTS_TO_CONVICT = 3
"""Number of replays of one result by which a member may be convicted."""
MAX_FAILURES = 3
"""Number of failures after which a replay is dropped."""
LAST_DISTANCES = 8
"""Number of a member's last replays by which its drift is judged."""
MAX_OPEN_REPLAYS = 4096
"""Maximum number of open replays; beyond it no other result is drawn until some are done."""
MAX_VERIFIERS = 64
"""Maximum number of verifiers that a run knows."""

ReplayKey: TypeAlias = str
"""`step/client_id` of a result."""
Why: TypeAlias = Literal["drawn", "exam", "new", "flagged"]
"""Why a result is replayed: by lot, because it is a key's first one or none of the key's has passed yet, or because its
client is flagged."""


def replay_key(step: int, client_id: str) -> ReplayKey:
    """Return the key of the replay of a client's result of a step."""
    return f"{step}/{client_id}"


class Reported(NamedTuple):
    """A verifier's report on a replay, and the tolerance by which it is judged."""

    verifier: str
    report: ReplayReport
    tolerance: float

    @property
    def ratio(self) -> float:
        """The excess distance as a multiple of the tolerance; the result passes up to 1."""
        return self.report.excess / self.tolerance


@dataclass(frozen=True, slots=True)
class OpenReplay:
    """A result that verifiers are to compute again.

    Attributes:
        step, attempt: the round.
        assignment: the client's batches.
        work_sha256: digest of the round's work list.
        result_sha256, size_bytes: of the result, whose bytes are kept.
        replica_digest: of replica `step − 1`, on which the round agreed.
        why: why it is replayed.
        is_compared: whether one that passes is also replayed by another verifier, if there is one.
        reports: of verifiers, the first one first.
        failures: verifiers that could not replay it, one entry for each failure.
    """

    step: int
    attempt: int
    client_id: ClientId
    assignment: tuple[BatchId, ...]
    work_sha256: Sha256
    result_sha256: Sha256
    size_bytes: int
    replica_digest: Blake3
    why: Why
    is_compared: bool = False
    reports: tuple[Reported, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def key(self) -> ReplayKey:
        """Its key among the open replays."""
        return replay_key(self.step, self.client_id)

    @property
    def is_disputed(self) -> bool:
        """Whether a report was above its tolerance, so that others are asked for."""
        return any(one.ratio > 1 for one in self.reports)

    def wants(self, verifier: str) -> bool:
        """Return whether a report of this verifier is of use; if others are there, theirs is of more."""
        return self.is_disputed or all(one.verifier != verifier for one in self.reports)

    def wanted_class(self, verifier: str) -> str | None:
        """Return the class in which this verifier is to compute it, if it can; None for its own.

        A disputed result is computed in its client's own class, then in another.
        """
        if not self.is_disputed:
            return None
        own = self.reports[0].report.result_class
        return None if any(one.report.replay_class == own for one in self.reports) else own


@dataclass(frozen=True, slots=True)
class Verifier:
    """A verifier, as far as the run knows it.

    Attributes:
        heard_step: the run's step when it reported last.
        reports: number of its reports.
        doubt: whether it found more ("above") or less ("below") than another one, and has yet to do a task of which
            the answer is known; "" if it did not.
        is_refused: whether it failed at such a task, so that its reports are refused.
    """

    heard_step: int
    reports: int = 0
    doubt: Literal["", "above", "below"] = ""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Distances:
    """The distances of one pair of classes and one number of local steps.

    Attributes:
        calibrated: the largest between honest repetitions; None before a calibration.
        passed: the last ones that passed, with their clients.
    """

    calibrated: float | None = None
    passed: tuple[tuple[ClientId, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a member's results have been verified.

    Attributes:
        examined: whether its first result was delivered.
        rounds: number of its results that were applied while none was awaiting a replay.
        passed: number of its results that passed a replay.
        drift: of the last ones, the distance as a multiple of twice what is usual for others.
        flagged: why each of its results is replayed; "" if they are not.
        passed_flagged: number of results that passed since it was flagged.
    """

    examined: bool = False
    rounds: int = 0
    passed: int = 0
    drift: tuple[float, ...] = ()
    flagged: str = ""
    passed_flagged: int = 0


UNTRUSTED = Trust()
"""The trust in a client that is not known yet."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of replays since the run began.

    Attributes:
        drawn: results that were drawn.
        passed, convicted: results that passed, and members that were convicted.
        dropped: results that nobody replayed in time.
    """

    drawn: int = 0
    passed: int = 0
    convicted: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Verification(WireDocument):
    """The verification of a run's results.

    Attributes:
        open: results that are to be computed again, the oldest first.
        known: results of which several replays agreed, by which verifiers are tested.
        verifiers: by name.
        distances: by result's class, replay's class and local steps, as `distances_key` joins them.
        convicted: what each convicted client was found by, in words.
        departed: the trust in clients that have left, the latest last.
        counts: numbers of replays.
    """

    open: Mapped[ReplayKey, OpenReplay] = field(default_factory=dict)
    known: tuple[OpenReplay, ...] = ()
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    distances: Mapping[str, Distances] = field(default_factory=dict)
    convicted: Mapping[ClientId, str] = field(default_factory=dict)
    departed: Mapped[ClientId, Trust] = field(default_factory=dict)
    counts: Counts = Counts()


NOT_VERIFIED = Verification()
"""The verification of a run of which nothing was replayed."""
