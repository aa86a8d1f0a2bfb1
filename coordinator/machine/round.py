"""The round under way, as a value: its assignments, and the messages that have arrived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from state.assignment import DataAssignments, assign_data_for_state
from state.documents import Roster, WorkList
from state.election import elect_witnesses, quorum, witness_count
from state.messages import Attestation, FailureReport, ResultCommitment
from state.wire import ClientId, Seed, Sha256


@dataclass(frozen=True, slots=True)
class RoundAssignment:
    """Clients' tasks in a round, computed from its roster, work list and seed.

    Attributes:
        assignments: each client's batches.
        positions: each client's position in the roster.
        witnesses: the elected witnesses.
        quorum: number of witnesses that must agree.
    """

    assignments: DataAssignments
    positions: dict[ClientId, int]
    witnesses: tuple[ClientId, ...]
    quorum: int


_NOT_YET_ASSIGNED = RoundAssignment({}, {}, (), 0)


@dataclass(frozen=True, slots=True)
class Round:
    """The round under way.

    Attributes:
        cursor: the first batch number beyond the round's fresh interval.
        pending: assigned clients that have neither delivered nor failed nor left.
        commitments: the result that each client is bound to.
        verified: the replica from which each held and checked result was trained, by client in order of arrival.
        rejected: the rule that each refused result breaks, by client.
        attestations: each witness's latest attestation, its bits limited to verified results.
        closing: the witnesses that attested in RoundWitness, when no further result can come.
        failures: the reports of clients that could not take the step.
        plan: not in snapshots; computed when the round is made or read.
    """

    step: int
    attempt: int
    height: int
    seed: Seed
    cursor: int
    roster: Roster
    work: WorkList
    roster_sha256: Sha256
    work_sha256: Sha256
    witness_nodes: int
    pending: frozenset[ClientId] = frozenset()
    commitments: Mapping[ClientId, ResultCommitment] = field(default_factory=dict)
    verified: Mapping[ClientId, Sha256] = field(default_factory=dict)
    rejected: Mapping[ClientId, str] = field(default_factory=dict)
    attestations: Mapping[ClientId, Attestation] = field(default_factory=dict)
    closing: frozenset[ClientId] = frozenset()
    failures: Mapping[ClientId, FailureReport] = field(default_factory=dict)
    plan: Annotated[RoundAssignment, Field(exclude=True)] = field(default=_NOT_YET_ASSIGNED, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.plan.quorum:
            object.__setattr__(self, "plan", self._assign())

    def _assign(self) -> RoundAssignment:
        count = witness_count(len(self.roster.clients), self.witness_nodes)
        return RoundAssignment(
            assignments=assign_data_for_state(self.roster, self.work, self.seed),
            positions={entry.client_id: position for position, entry in enumerate(self.roster.clients)},
            witnesses=elect_witnesses(self.roster, self.seed, count),
            quorum=quorum(count),
        )
