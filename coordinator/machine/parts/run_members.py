"""The clients of a run: its members, those that were, and those that may not be.

The numbers of members are kept while single members change; see `member_counts`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from epochal.coordinator.machine.parts.admissions import NO_ADMISSIONS, Admissions
from epochal.coordinator.machine.parts.conduct import Conduct
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.member_counts import Numbers, Tally, tally_of
from epochal.coordinator.machine.parts.persistent_map import Mapped, added, plain, removed, shared
from epochal.coordinator.machine.parts.verification import NOT_VERIFIED, UNTRUSTED, Trust, Verification
from epochal.state.wire import ClientId, Sha256
from epochal.state.wire_document import WireDocument

DELIVERED_LATELY_STEPS = 32
"""Number of last steps of which one at least must have applied a result of a member whose failures count."""
MAX_DEPARTED = 4096
"""Clients that left with bad conduct and are remembered, the latest ones, so that joining again changes nothing."""


@dataclass(frozen=True, slots=True)
class RunMembers(WireDocument):
    """The clients of a run.

    Attributes:
        by_id: the members.
        departed: the bad conduct of clients that have left, the latest last.
        ejected: clients that may not join again.
        used_nonces: consumed join nonces and when each expires.
        invitations_used: the client that each invitation of the state file has admitted.
        admissions: who may join beside those whom the state file names.
        verification: of their results.
        tally: numbers of members that were counted before; not in snapshots (`numbers`).
    """

    by_id: Mapped[ClientId, Member] = field(default_factory=dict)
    departed: Mapped[ClientId, Conduct] = field(default_factory=dict)
    ejected: frozenset[ClientId] = frozenset()
    used_nonces: Mapped[str, float] = field(default_factory=dict)
    invitations_used: Mapping[Sha256, ClientId] = field(default_factory=dict)
    admissions: Admissions = NO_ADMISSIONS
    verification: Verification = NOT_VERIFIED
    tally: Annotated[Tally | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self.by_id

    def __len__(self) -> int:
        return len(self.by_id)

    def available(self, now_s: float) -> list[Member]:
        """Return the members that neither rest nor leave."""
        return [member for member in self.by_id.values() if member.is_available(now_s)]

    def ready(self, run_data: str | None, now_s: float) -> list[Member]:
        """Return the members that hold the model and the run's data, and do not rest."""
        return [member for member in self.by_id.values() if member.is_ready(run_data, now_s)]

    def numbers(self, run_data: str | None, now_s: float) -> Numbers:
        """Return numbers of the members at a time, counted anew only where that cannot be helped."""
        tally = self.tally
        if tally is None or not tally.holds(self.by_id, run_data, now_s):
            tally = tally_of(self.by_id, self.by_id.values(), run_data, now_s)
            object.__setattr__(self, "tally", tally)  # it says nothing new about the members
        return tally.numbers

    def has_delivered_lately(self, client_id: ClientId, step: int) -> bool:
        """Return whether it is a member of which a result was applied in the last steps before this one.

        Every such result is other work than a batch that fails: a batch that was applied is never attempted again.
        """
        member = self.by_id.get(client_id)
        if member is None or member.conduct.last_applied_step is None:
            return False
        return step - member.conduct.last_applied_step <= DELIVERED_LATELY_STEPS

    def with_member(self, member: Member, now_s: float) -> "RunMembers":
        """Return the members with this one, in place of the one with its id if there is one."""
        return self._changed(added(self.by_id, member.client_id, member), member.client_id, now_s)

    def without(self, gone: Iterable[Member], now_s: float) -> "RunMembers":
        """Return the members without these, whose bad conduct is remembered."""
        left, departed, verification = self, self.departed, self.verification
        for member in gone:
            departed = remembered(departed, member.client_id, member.conduct)
            verification = verification.with_trust(member.client_id, member.trust)
            left = left._changed(removed(left.by_id, member.client_id), member.client_id, now_s)
        return replace(left, departed=departed, verification=verification)

    def trust_of(self, client_id: ClientId) -> Trust:
        """Return the trust in a client, which may have left."""
        member = self.by_id.get(client_id)
        return self.verification.departed.get(client_id, UNTRUSTED) if member is None else member.trust

    def with_trust(self, client_id: ClientId, trust: Trust) -> "RunMembers":
        """Return the members with another trust in a client, which may have left."""
        member = self.by_id.get(client_id)
        if member is None:
            return replace(self, verification=self.verification.with_trust(client_id, trust))
        return replace(self, by_id=added(self.by_id, client_id, replace(member, trust=trust)))

    def with_all(self, by_id: Mapping[ClientId, Member]) -> "RunMembers":
        """Return the clients of the run with these as its members."""
        return replace(self, by_id=shared(by_id))

    def before_warmup(self) -> "RunMembers":
        """Return the members as Warmup begins: nobody is ready in the new epoch."""
        before = {
            client_id: replace(member, readiness=member.readiness.before_warmup())
            for client_id, member in self.by_id.items()
        }
        return self.with_all(before)

    def after_warmup(self, now_s: float) -> "RunMembers":
        """Return the members as Warmup ends: those that could have been ready and are not were late."""
        members = plain(self.by_id)
        for member in self.available(now_s):
            if member.readiness.step is None:
                members[member.client_id] = replace(member, readiness=replace(member.readiness, was_late=True))
        return self.with_all(members)

    def admitting(self, admissions: Admissions) -> "RunMembers":
        """Return the members with these admissions; the same value if it has them."""
        return self if admissions is self.admissions else replace(self, admissions=admissions)

    def ejecting(self, client_id: ClientId) -> "RunMembers":
        """Return the members with a client that may not join again; the same value if it may not already."""
        return self if client_id in self.ejected else replace(self, ejected=self.ejected | {client_id})

    def verified_as(self, verification: Verification) -> "RunMembers":
        """Return the members with this verification; the same value if they have it."""
        return self if verification is self.verification else replace(self, verification=verification)

    def _changed(self, by_id: Mapping[ClientId, Member], changed: ClientId, now_s: float) -> "RunMembers":
        tally = self.tally
        if tally is not None and tally.holds(self.by_id, tally.run_data, now_s):
            tally = tally.changed(by_id, self.by_id.get(changed), by_id.get(changed), now_s)
        return replace(self, by_id=by_id, tally=tally)


def remembered(
    departed: Mapping[ClientId, Conduct], client_id: ClientId, conduct: Conduct
) -> Mapping[ClientId, Conduct]:
    """Return the departed with this client if its conduct is bad, and without the oldest if they are too many."""
    kept = removed(departed, client_id)
    if not conduct.is_good:
        kept = added(kept, client_id, conduct)
    while len(kept) > MAX_DEPARTED:
        kept = removed(kept, next(iter(kept)))
    return kept
