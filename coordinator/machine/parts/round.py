"""The round under way, as a value: its assignments, and the messages that have arrived."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from epochal.coordinator.machine.parts.fast_replace import replace
from epochal.coordinator.machine.parts.persistent_map import Mapped, Members, added, joined, left, plain, shared_set
from epochal.state.assignment import DataAssignments, assign_data_for_state
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Roster, WorkList
from epochal.state.election import elect_witnesses, quorum, witness_count
from epochal.state.intervals import total_batches
from epochal.state.messages.requests import Attestation, FailureReport, ResultCommitment
from epochal.state.messages.round_times import LaterTimes
from epochal.state.weights import UsualNorm, Weighed, steps_of
from epochal.state.wire import ClientId, Seed, Sha256


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


@dataclass(frozen=True, slots=True)
class Ahead:
    """The next round as it is if nothing more is lost. It is shown to clients, and the machine does nothing by it.

    Attributes:
        roster: its roster; None if it is that of the round under way.
    """

    roster_sha256: Sha256
    work_sha256: Sha256
    work: WorkList
    roster: Roster | None = None


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The times at which a client's messages of a round came, in seconds since the round began; None: none came.

    Attributes:
        committed_s: of its commitment, if its result did not come along.
        delivered_s: of its result, held and checked.
        attested_s: of its last attestation.
        check_ms: milliseconds that the coordinator took to check its result.
        told: the times of this round that the client has reported, if it leaves before the round ends.
    """

    committed_s: float | None = None
    delivered_s: float | None = None
    attested_s: float | None = None
    check_ms: int | None = None
    told: LaterTimes | None = None


NO_ARRIVALS = MessageTimes()
_NOT_YET_ASSIGNED = RoundAssignment({}, {}, (), 0, frozenset(), 0)


@dataclass(frozen=True)
class Round:
    """The round under way.

    Attributes:
        assignment_seed: permutes the proven clients; the seed of the round before.
        cursor: the first batch number beyond the round's fresh interval.
        usual: usual length of a result; None if it is not known.
        pending: assigned clients that have neither delivered nor failed nor left.
        commitments: the result that each client is bound to.
        verified: the replica from which each held and checked result was trained, by client in order of arrival.
        norms: the length of each of those results.
        rejected: the rule that each refused result breaks, by client.
        attestations: each witness's latest attestation, its bits limited to verified results.
        closing: the witnesses that attested in RoundWitness, when no further result can come.
        failures: the reports of clients that could not take the step.
        without_room: clients whose results the coordinator refused for want of room.
        late: the clients whose results arrived so late that more work might not have arrived in time.
        delivered_batches: number of the electorate's batches over which verified results are.
        mostly_in_s, last_in_s: seconds from the round's start to the result that completed most of the electorate's
            batches, and to the last one.
        settled_in_s, complete_in_s: seconds from the round's start until nothing more was expected of the electorate,
            and of anybody.
        timed_out: whether RoundTrain ended before every result had arrived.
        train_s: time that the round took its quicker clients (`coordinator/machine/pace.py`), once RoundTrain is over.
        waited_s: time for which RoundTrain had waited, in vain, only for clients that never delivered.
        ahead: the provisional next round; None if there is none.
        arrivals: when each client's messages came, for display only, as the next; not compared, because snapshots of
            earlier versions have none.
        trained_s: seconds that RoundTrain took, once it is over.
        plan: not in snapshots; computed when the round is made or read.
        decisive_pending: number of pending clients of the electorate; kept like the plan, as is the next.
        verified_bits: bit set of the clients with a verified result.
        digests: of the results that clients are bound to.
    """

    step: int
    attempt: int
    height: int
    seed: Seed
    assignment_seed: Seed
    cursor: int
    roster: Roster
    work: WorkList
    roster_sha256: Sha256
    work_sha256: Sha256
    witness_nodes: int
    usual: UsualNorm | None = None
    pending: Members[ClientId] = frozenset()
    commitments: Mapped[ClientId, ResultCommitment] = field(default_factory=dict)
    verified: Mapped[ClientId, Sha256] = field(default_factory=dict)
    norms: Mapped[ClientId, float] = field(default_factory=dict)
    rejected: Mapped[ClientId, str] = field(default_factory=dict)
    attestations: Mapping[ClientId, Attestation] = field(default_factory=dict)
    closing: frozenset[ClientId] = frozenset()
    failures: Mapped[ClientId, FailureReport] = field(default_factory=dict)
    without_room: Members[ClientId] = frozenset()
    late: Members[ClientId] = frozenset()
    delivered_batches: int = 0
    mostly_in_s: float | None = None
    last_in_s: float | None = None
    settled_in_s: float | None = None
    complete_in_s: float | None = None
    timed_out: bool = False
    train_s: float | None = None
    waited_s: float = 0.0
    ahead: Ahead | None = None
    arrivals: Mapped[ClientId, MessageTimes] = field(default_factory=dict, compare=False)
    trained_s: float | None = field(default=None, compare=False)
    plan: Annotated[RoundAssignment, Field(exclude=True)] = field(default=_NOT_YET_ASSIGNED, repr=False, compare=False)
    decisive_pending: Annotated[int | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)
    verified_bits: Annotated[int | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)
    digests: Annotated[AbstractSet[Sha256] | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.plan.quorum:
            object.__setattr__(self, "plan", self._assign())
        if self.decisive_pending is None:
            object.__setattr__(self, "decisive_pending", len(self.plan.electorate & self.pending))
        if self.verified_bits is None:
            object.__setattr__(self, "verified_bits", self.bits_of(self.verified))
        if self.digests is None:
            committed = frozenset(Sha256(report.result_sha256) for report in self.commitments.values())
            object.__setattr__(self, "digests", shared_set(committed))

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

    def waiting_for(self, clients: Iterable[ClientId]) -> "Round":
        """Return the round waiting for these clients, and for nobody else."""
        return replace(self, pending=shared_set(frozenset(clients)), decisive_pending=None)

    def no_longer_waiting_for(self, clients: Iterable[ClientId]) -> "Round":
        """Return the round waiting for these clients no longer."""
        gone = [client_id for client_id in clients if client_id in self.pending]
        if not gone:
            return self
        assert self.decisive_pending is not None
        decisive = self.decisive_pending - sum(client_id in self.plan.electorate for client_id in gone)
        return replace(self, pending=left(self.pending, gone), decisive_pending=decisive)

    def with_commitment(self, client_id: ClientId, report: ResultCommitment) -> "Round":
        """Return the round with a client bound to its result."""
        assert self.digests is not None
        digests = joined(self.digests, Sha256(report.result_sha256))
        return replace(self, commitments=added(self.commitments, client_id, report), digests=digests)

    def with_verified(self, client_id: ClientId, replica_digest: Sha256, norm: float) -> "Round":
        """Return the round with a verified result."""
        assert self.verified_bits is not None
        bits = self.verified_bits | 1 << self.plan.positions[client_id]
        verified, norms = added(self.verified, client_id, replica_digest), added(self.norms, client_id, norm)
        return replace(self, verified=verified, norms=norms, verified_bits=bits)

    def with_arrival(self, client_id: ClientId, **times: Any) -> "Round":
        """Return the round with times at which messages of a client came, by the names in `MessageTimes`."""
        known = self.arrivals.get(client_id, NO_ARRIVALS)
        return replace(self, arrivals=added(self.arrivals, client_id, replace(known, **times)))

    def weighed(self, state: StateFile, clients: Iterable[ClientId]) -> list[Weighed]:
        """Return the verified results of these clients, as far as their factors depend on them."""
        norms, assignments, electorate = plain(self.norms), self.plan.assignments, self.plan.electorate
        alone = self.work.isolated_batches()
        return [
            Weighed(batches, steps_of(state, batches), norms[one], one in electorate, not alone.isdisjoint(assignment))
            for one, assignment, batches in (
                (one, assignments[one], total_batches(assignments[one])) for one in clients
            )
        ]

    def bits_of(self, clients: Iterable[ClientId]) -> int:
        """Return the bit set of these clients' roster positions, as attestations have it."""
        bits = bytearray(len(self.roster.clients) // 8 + 1)
        for client_id in clients:
            position = self.plan.positions[client_id]
            bits[position // 8] |= 1 << position % 8
        return int.from_bytes(bits, "little")
