"""A member of a run: a client that has joined, and the roster that members make."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import gcd

from epochal.coordinator.machine.parts.reliability import NEWCOMER, Conduct
from epochal.state.documents import SHARE_UNITS_PER_BATCH, Roster, RosterEntry
from epochal.state.wire import ClientId


@dataclass(frozen=True, slots=True)
class Member:
    """A client that has joined.

    Attributes:
        share: the batches that it claims to take in a round: an upper bound of what it is given.
        nonce: of its last join; session tokens of earlier joins are superseded.
        instance: the process that joined; None if it did not name itself.
        ready_step: the replica that it reported to hold in this epoch; None until it reported.
        was_ready: whether its process was ready in an earlier epoch.
        data_fingerprint: of the data that it reported to have; None until it reported.
        joined_step: the step of the run when its process joined.
        was_late: whether the last Warmup ended before it was ready, and it has not been ready since.
        conduct: how it did in the rounds so far.
        name, software: that it chose, and the version of its program; "" if it says neither.
    """

    client_id: ClientId
    public_key: str
    share: int
    trainer: str
    nonce: str
    instance: str | None = None
    ready_step: int | None = None
    was_late: bool = False
    was_ready: bool = False
    data_fingerprint: str | None = None
    conduct: Conduct = NEWCOMER
    joined_step: int = 0
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
        return last is not None and last >= self.joined_step

    def before_warmup(self) -> "Member":
        """Return the member as an epoch's Warmup begins, in which it has yet to be ready."""
        return replace(self, ready_step=None, was_ready=self.was_ready or self.ready_step is not None)

    def is_ready(self, run_data: Collection[str | None], now_s: float) -> bool:
        """Return whether it holds the model and data of these fingerprints, and does not rest."""
        return self.ready_step is not None and self.data_fingerprint in run_data and not self.conduct.is_resting(now_s)


def roster_of(members: Iterable[Member], ceiling: int | None = None) -> Roster:
    """Return the roster of these members with the shares that they have earned, in lowest terms."""
    ordered = sorted(members, key=lambda member: member.client_id)
    common = gcd(*(share_units(member) for member in ordered)) or 1
    return Roster(
        tuple(RosterEntry(member.client_id, share_units(member) // common, member.is_proven) for member in ordered),
        ceiling,
    )


def most_share_units(member: Member) -> int:
    """Return the share that a member claims, in a roster's units."""
    return member.share * SHARE_UNITS_PER_BATCH


def share_units(member: Member) -> int:
    """Return the share of a member in the next roster: what it has earned, at most its claim."""
    return min(member.conduct.earned, most_share_units(member))
