"""Clients' tasks in a round: its roster and work list, and what follows from them and from its seeds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from epochal.coordinator.machine.parts.planned_ahead import EagerStarts
from epochal.state.assignment import DataAssignments, assign_data_for_state
from epochal.state.documents import Roster, WorkList
from epochal.state.election import elect_witnesses, quorum, witness_count
from epochal.state.intervals import total_batches
from epochal.state.wire import Blake3, ClientId, Seed, Sha256


@dataclass(frozen=True, slots=True)
class RoundAssignment:
    """Clients' tasks in a round, computed from its roster, work list and seed.

    Attributes:
        assignments: each client's batches.
        positions: each client's position in the roster.
        witnesses: the elected witnesses.
        quorum: number of witnesses that must agree.
        electorate: the clients by whom a round is judged: those that delivered before, or all if there is none.
        decisive_count: number of the electorate's batches.
    """

    assignments: DataAssignments
    positions: dict[ClientId, int]
    witnesses: tuple[ClientId, ...]
    quorum: int
    electorate: frozenset[ClientId]
    decisive_count: int

    def bits_of(self, clients: Iterable[ClientId]) -> int:
        """Return the bit set of these clients' roster positions, as attestations have it."""
        bits = bytearray(len(self.positions) // 8 + 1)
        for client_id in clients:
            position = self.positions[client_id]
            bits[position // 8] |= 1 << position % 8
        return int.from_bytes(bits, "little")


_NOT_YET_ASSIGNED = RoundAssignment({}, {}, (), 0, frozenset(), 0)


@dataclass(frozen=True, slots=True)
class RoundTasks:
    """A round's clients and its work. It never changes.

    Attributes:
        seed: elects the witnesses, and permutes the proven clients of the round after.
        assignment_seed: permutes the proven clients; the seed of the round before.
        cursor: the first batch number beyond the round's fresh interval.
        starts: from which clients may have trained before the round began; None if its work was not drawn ahead.
        plan: not in snapshots; computed when the tasks are made or read.
    """

    roster: Roster
    work: WorkList
    roster_sha256: Sha256
    work_sha256: Sha256
    seed: Seed
    assignment_seed: Seed
    cursor: int
    witness_nodes: int
    starts: EagerStarts | None = None
    plan: Annotated[RoundAssignment, Field(exclude=True)] = field(default=_NOT_YET_ASSIGNED, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.plan.quorum:
            object.__setattr__(self, "plan", self._assign())

    def _assign(self) -> RoundAssignment:
        electorate = self.roster.electorate()
        count = witness_count(len(electorate), self.witness_nodes)
        assignments = assign_data_for_state(self.roster, self.work, self.assignment_seed, self.seed)
        return RoundAssignment(
            assignments=assignments,
            positions={entry.client_id: position for position, entry in enumerate(self.roster.clients)},
            witnesses=elect_witnesses(self.roster, self.seed, count),
            quorum=quorum(count),
            electorate=frozenset(electorate),
            decisive_count=sum(total_batches(assignments[client_id]) for client_id in electorate),
        )

    def is_eager(self, client_id: ClientId, replica: Blake3) -> bool:
        """Whether a client that trained from this replica began before the round, with its own last result."""
        return self.starts is not None and replica == self.starts.replica_digest and client_id in self.starts.results

    def with_work(self) -> frozenset[ClientId]:
        """Return the clients that have work."""
        return frozenset(client_id for client_id, batches in self.plan.assignments.items() if batches)
