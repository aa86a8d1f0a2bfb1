"""The round under way, as a value: who was given what, what has arrived, and the plan that follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from state.assignment import DataAssignments, assign_data_for_state
from state.documents import Roster, WorkList
from state.election import elect_witnesses, quorum, witness_count
from state.intervals import BatchId
from state.messages import ResultMetrics
from state.wire import ClientId, Seed, Sha256

PLAN_CACHE_SIZE = 8


@dataclass(frozen=True, slots=True)
class Commitment:
    """A client's one result of the round under way. Verified when `replica_digest` is known; else maybe `rejected`."""

    result_sha256: Sha256
    size_bytes: int
    metrics: ResultMetrics
    replica_digest: Sha256 | None = None
    rejected: str | None = None


@dataclass(frozen=True, slots=True)
class Attested:
    """A witness's latest attestation. `received` is a bit set in hex; `closing` says that it came in RoundWitness."""

    replica_digest: Sha256
    received: str
    closing: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A client's report that it could not take the step; `batch_id` narrows the blame."""

    kind: str
    message: str
    batch_id: BatchId | None


@dataclass(frozen=True, slots=True)
class Round:
    """The round under way.

    Attributes:
        cursor: the first batch number beyond the round's fresh interval.
        pending: assigned clients of whom neither result nor failure nor departure is known.
        verified: clients whose result is held and checked, in order of arrival.
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
    pending: frozenset[ClientId]
    verified: tuple[ClientId, ...] = ()
    commitments: Mapping[ClientId, Commitment] = field(default_factory=dict)
    attestations: Mapping[ClientId, Attested] = field(default_factory=dict)
    failures: Mapping[ClientId, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What follows from a round's roster, work list and seed."""

    assignments: DataAssignments
    positions: dict[ClientId, int]
    witnesses: tuple[ClientId, ...]
    quorum: int


class _PlanKey:
    """Names a round's plan by digests, so that the cache need not hash a roster of thousands."""

    def __init__(self, current: Round) -> None:
        self.round = current
        self._name = (current.roster_sha256, current.work_sha256, current.seed, current.witness_nodes)

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlanKey) and other._name == self._name


@lru_cache(maxsize=PLAN_CACHE_SIZE)
def _plan(key: _PlanKey) -> RoundPlan:
    current = key.round
    count = witness_count(len(current.roster.clients), current.witness_nodes)
    return RoundPlan(
        assignments=assign_data_for_state(current.roster, current.work, current.seed),
        positions={entry.client_id: position for position, entry in enumerate(current.roster.clients)},
        witnesses=elect_witnesses(current.roster, current.seed, count),
        quorum=quorum(count),
    )


def plan_of(current: Round) -> RoundPlan:
    """Assignments, witnesses and quorum of the round; computed once per round."""
    return _plan(_PlanKey(current))
