"""A member of a run: a client that has joined, and the roster that members make."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from epochal.coordinator.machine.parts.conduct import NEWCOMER, Conduct
from epochal.coordinator.machine.parts.speed import UNKNOWN, Speed
from epochal.coordinator.machine.parts.verification import UNTRUSTED, Trust
from epochal.state.documents import Roster, RosterEntry
from epochal.state.wire import ClientId


@dataclass(frozen=True, slots=True)
class Joining:
    """The last join of a member.

    Attributes:
        nonce: of the join; session tokens of earlier ones are superseded.
        instance: the process that joined; None if it did not name itself.
        step: the step of the run when that process joined.
    """

    nonce: str
    instance: str | None = None
    step: int = 0


@dataclass(frozen=True, slots=True)
class MemberReadiness:
    """How far a member's process is ready to train.

    Attributes:
        step: the replica that it reported to hold in this epoch; None until it reported.
        data_fingerprint: of the data that it reported to have; None until it reported.
        was_late: whether the last Warmup ended before it was ready, and it has not been ready since.
        was_ready: whether it was ready in an earlier epoch.
        is_leaving: whether its process reported that it leaves after the round under way.
    """

    step: int | None = None
    data_fingerprint: str | None = None
    was_late: bool = False
    was_ready: bool = False
    is_leaving: bool = False

    def before_warmup(self) -> "MemberReadiness":
        """Return the readiness as an epoch's Warmup begins, in which the member has yet to be ready."""
        return replace(self, step=None, was_ready=self.was_ready or self.step is not None)

    def of_next_process(self, *, is_same: bool) -> "MemberReadiness":
        """Return the readiness after another join: of the same process, or of a new one."""
        return MemberReadiness(was_late=self.was_late, was_ready=is_same and (self.was_ready or self.step is not None))

    def reported(self, step: int, data_fingerprint: str | None) -> "MemberReadiness":
        """Return the readiness once the member has reported to hold a replica and data."""
        return replace(self, step=step, data_fingerprint=data_fingerprint, was_late=False)


NOT_READY = MemberReadiness()


@dataclass(frozen=True, slots=True)
class Member:
    """A client that has joined.

    Attributes:
        claim: the most batches that it takes in a round, as it says.
        trainer: what computes there, as it says.
        joining: its last join.
        readiness: how far it is ready to train.
        conduct: how it did in the rounds so far.
        speed: how long a round takes it.
        trust: how far its results have been verified.
        name, software: that it chose, and the version of its program; "" if it says neither.
    """

    client_id: ClientId
    public_key: str
    claim: int
    trainer: str
    joining: Joining
    readiness: MemberReadiness = NOT_READY
    conduct: Conduct = NEWCOMER
    speed: Speed = UNKNOWN
    trust: Trust = UNTRUSTED
    name: str = ""
    software: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether a result of it was applied."""
        return self.conduct.last_applied_step is not None

    @property
    def is_warm(self) -> bool:
        """Whether a result of it was applied since its process joined, which then has the state of an optimizer."""
        last = self.conduct.last_applied_step
        return last is not None and last >= self.joining.step

    def is_available(self, now_s: float) -> bool:
        """Return whether the next round may count on it: it neither rests nor leaves."""
        return not (self.readiness.is_leaving or self.conduct.is_resting(now_s))

    def is_ready(self, run_data: str | None, now_s: float) -> bool:
        """Return whether it holds the model and data of these fingerprints, and is available."""
        readiness = self.readiness
        has_all = readiness.step is not None and readiness.data_fingerprint == run_data
        return has_all and self.is_available(now_s)


def roster_of(members: Iterable[Member]) -> Roster:
    """Return the roster of these members, all of whom are alike, for a task that only one of them gets."""
    ordered = sorted(members, key=lambda member: member.client_id)
    return Roster(tuple(RosterEntry(member.client_id, 1, member.is_proven) for member in ordered))
