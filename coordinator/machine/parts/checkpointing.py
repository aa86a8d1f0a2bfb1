"""The making of a checkpoint, as a value: who takes part in it, and what has arrived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from epochal.coordinator.machine.parts.persistent_map import Mapped
from epochal.coordinator.machine.parts.run_work import WorkAtCheckpoint
from epochal.state.documents import CheckpointRef, Roster
from epochal.state.election import checkpointer_order, elect_witnesses, witness_count
from epochal.state.messages.requests import CheckpointReport
from epochal.state.wire import ClientId, Seed


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Who takes part in the making of a checkpoint: a pure function of its roster and seed.

    Attributes:
        electors: the clients whose digests are counted.
        order: the whole roster in the order in which it is asked: those that delivered before come first.
        clients: the same as a set.
    """

    electors: tuple[ClientId, ...]
    order: tuple[ClientId, ...]
    clients: frozenset[ClientId]


@dataclass(frozen=True, slots=True)
class CheckpointClaims:
    """The reports and uploads of a checkpoint that clients have made.

    Attributes:
        by_client: each client's latest report: its replica's digest, and the blob that it uploads if it is asked to.
        held: the claims whose bytes are held, with the digest computed from the bytes, by client.
        rejected: the clients whose bytes broke a rule; they are not asked again.
    """

    by_client: Mapped[ClientId, CheckpointReport] = field(default_factory=dict)
    held: Mapping[ClientId, CheckpointRef] = field(default_factory=dict)
    rejected: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True)
class CheckpointTurns:
    """The turns in which clients are asked to write a checkpoint.

    Attributes:
        asked_s: when the client was asked that is asked now, on the run's clock.
        passed: the clients that were asked and did not deliver in their turn, oldest first; they still may.
    """

    asked_s: float
    passed: tuple[ClientId, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The making of a checkpoint: of the run's first replica (`genesis`), in Cooldown, or while rounds go on.

    Attributes:
        step: the replica to be kept.
        work: the run's work as of that replica.
        turns: whose turn it is to write it.
        claims: the digests that clients have claimed for it.
        ends_s: when it is given up, while rounds go on; None if it ends with its phase.
        plan: not in snapshots; computed when it is needed first (`planned`).
    """

    step: int
    genesis: bool
    seed: Seed
    roster: Roster
    witness_nodes: int
    turns: CheckpointTurns
    work: WorkAtCheckpoint
    claims: CheckpointClaims = CheckpointClaims()
    ends_s: float | None = None
    plan: Annotated[CheckpointPlan | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    def planned(self) -> CheckpointPlan:
        """Return who may take part, and in which order."""
        if self.plan is None:
            count = witness_count(len(self.roster.electorate()), self.witness_nodes)
            proven = {entry.client_id for entry in self.roster.clients if entry.proven}
            order = sorted(checkpointer_order(self.roster, self.seed), key=lambda client_id: client_id not in proven)
            plan = CheckpointPlan(
                electors=elect_witnesses(self.roster, self.seed, count), order=tuple(order), clients=frozenset(order)
            )
            object.__setattr__(self, "plan", plan)  # it follows from the other fields
            return plan
        return self.plan

    def electors(self) -> tuple[ClientId, ...]:
        """Return the clients whose digests are counted."""
        return self.planned().electors
