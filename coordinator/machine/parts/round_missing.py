"""The results that a round lacks: those that are still expected, and why others do not come."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from epochal.coordinator.machine.parts.persistent_map import Mapped, Members, added, joined, left, removed, shared_set
from epochal.state.messages.requests import FailureReport
from epochal.state.wire import ClientId


@dataclass(frozen=True, slots=True)
class RoundMissing:
    """The results that a round lacks.

    Attributes:
        pending: assigned clients that have neither delivered nor failed nor left.
        failures: the reports of clients that could not take the step.
        rejected: the rule that each refused result breaks, by client.
        without_room: clients whose results the coordinator refused for want of room.
        excused: clients that left between two rounds, so that their part of this one is no miss of theirs.
        decisive_pending: number of pending clients of the electorate; not in snapshots (`Round`).
    """

    pending: Members[ClientId] = frozenset()
    failures: Mapped[ClientId, FailureReport] = field(default_factory=dict)
    rejected: Mapped[ClientId, str] = field(default_factory=dict)
    without_room: Members[ClientId] = frozenset()
    excused: Members[ClientId] = frozenset()
    decisive_pending: Annotated[int | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    def waiting_for(self, clients: frozenset[ClientId], electorate: frozenset[ClientId]) -> "RoundMissing":
        """Return it with these clients pending, and nobody else."""
        return replace(self, pending=shared_set(clients), decisive_pending=len(electorate & clients))

    def no_longer(self, clients: Iterable[ClientId], electorate: Collection[ClientId]) -> "RoundMissing":
        """Return it without these among the pending clients; the same value if none of them is."""
        gone = [client_id for client_id in clients if client_id in self.pending]
        if not gone:
            return self
        assert self.decisive_pending is not None
        decisive = self.decisive_pending - sum(client_id in electorate for client_id in gone)
        return replace(self, pending=left(self.pending, gone), decisive_pending=decisive)

    def with_failure(self, client_id: ClientId, report: FailureReport) -> "RoundMissing":
        """Return it with a client's report that it could not take the step."""
        return replace(self, failures=added(self.failures, client_id, report))

    def with_rejected(self, client_id: ClientId, rule: str) -> "RoundMissing":
        """Return it with the rule that a client's result breaks."""
        return replace(self, rejected=added(self.rejected, client_id, rule))

    def without_rejected(self, client_id: ClientId) -> "RoundMissing":
        """Return it after a result of a client was verified; the same value if none was refused before."""
        return replace(self, rejected=removed(self.rejected, client_id)) if client_id in self.rejected else self

    def with_no_room(self, client_id: ClientId) -> "RoundMissing":
        """Return it with a client for whose result there is no room."""
        return replace(self, without_room=joined(self.without_room, client_id))

    def excusing(self, clients: Iterable[ClientId]) -> "RoundMissing":
        """Return it with these clients excused; the same value if there are none."""
        excused = self.excused
        for client_id in clients:
            excused = joined(excused, client_id)
        return self if excused is self.excused else replace(self, excused=excused)
