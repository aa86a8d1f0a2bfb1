"""The round under way, as a value of a few parts: its clients' tasks, and the messages that have arrived."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from epochal.coordinator.machine.composed import Composed
from epochal.coordinator.machine.parts.held_results import HeldResults
from epochal.coordinator.machine.parts.persistent_map import Mapped, added, plain, removed
from epochal.coordinator.machine.parts.planned_ahead import Ahead, EarlyCommitment
from epochal.coordinator.machine.parts.round_missing import RoundMissing
from epochal.coordinator.machine.parts.round_tasks import RoundTasks
from epochal.coordinator.machine.parts.train_times import TrainTimes
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import total_batches
from epochal.state.messages.requests import Attestation
from epochal.state.messages.round_times import LaterTimes
from epochal.state.schedule import trained_tokens
from epochal.state.weights import Weighed, steps_of
from epochal.state.wire import Blake3, ClientId


@dataclass(frozen=True, slots=True)
class RoundWitnessed:
    """The attestations of a round's witnesses.

    Attributes:
        attestations: each witness's latest attestation, its bits limited to verified results.
        closing: the witnesses that attested in RoundWitness, when no further result can come.
    """

    attestations: Mapping[ClientId, Attestation] = field(default_factory=dict)
    closing: frozenset[ClientId] = frozenset()

    def attested(self, client_id: ClientId, attested: Attestation, *, is_closing: bool) -> "RoundWitnessed":
        """Return it with a witness's attestation; the same value if it is known."""
        closing = self.closing | {client_id} if is_closing else self.closing
        if self.attestations.get(client_id) == attested and closing == self.closing:
            return self
        return RoundWitnessed({**self.attestations, client_id: attested}, closing)

    def complete(self, held: int) -> frozenset[ClientId]:
        """Return the witnesses that attested every one of these results, a bit set of positions."""
        return frozenset(
            witness for witness, attested in self.attestations.items() if not held & ~attested.received_bits()
        )


@dataclass(frozen=True, slots=True)
class RoundNumber:
    """Which round it is. See `RunDocument` for the fields."""

    step: int
    attempt: int
    height: int

    def is_attempt(self, step: int, attempt: int) -> bool:
        """Return whether it is this attempt at this step."""
        return (self.step, self.attempt) == (step, attempt)


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The times at which a client's messages of a round came, in seconds since the round began; None: none came.

    Attributes:
        began_s: when the client could begin to train: 0, or less with work that was drawn ahead.
        committed_s: of its commitment, if its result did not come along.
        delivered_s: of its result, held and checked.
        attested_s: of its last attestation.
        check_ms: milliseconds that the coordinator took to check its result.
        told: the times of this round that the client has reported, if it leaves before the round ends.
    """

    began_s: float = 0.0
    committed_s: float | None = None
    delivered_s: float | None = None
    attested_s: float | None = None
    check_ms: int | None = None
    told: LaterTimes | None = None


NO_ARRIVALS = MessageTimes()

RoundPart: TypeAlias = RoundNumber | RoundTasks | HeldResults | RoundMissing | RoundWitnessed | TrainTimes
"""A part of a round."""


@dataclass(frozen=True)
class Round(Composed):
    """The round under way.

    Attributes:
        number: which round it is.
        tasks: its clients and its work.
        results: those that clients are bound to, and those that are held and checked.
        missing: the results that it lacks.
        witnessed: what its witnesses have attested.
        times: the times of its RoundTrain.
        ahead: the next round, provisional or promised; None if there is none.
        promise_from_s: seconds after the start from which the next round is promised (`merge.delay`).
        arrivals: when each client's messages came, from which its speed follows.
        early: commitments to results of the promised next round.
    """

    number: RoundNumber
    tasks: RoundTasks
    results: HeldResults = field(default_factory=HeldResults)
    missing: RoundMissing = field(default_factory=RoundMissing)
    witnessed: RoundWitnessed = field(default_factory=RoundWitnessed)
    times: TrainTimes = field(default_factory=TrainTimes)
    ahead: Ahead | None = None
    promise_from_s: float = 0.0
    arrivals: Mapped[ClientId, MessageTimes] = field(default_factory=dict)
    early: Mapped[ClientId, EarlyCommitment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.results.verified_bits is None:
            bits = self.tasks.plan.bits_of(self.results.verified)
            object.__setattr__(self, "results", replace(self.results, verified_bits=bits))
        if self.missing.decisive_pending is None:
            decisive = len(self.tasks.plan.electorate & self.missing.pending)
            object.__setattr__(self, "missing", replace(self.missing, decisive_pending=decisive))

    def with_parts(self, *parts: RoundPart) -> "Round":
        """Return the round with these parts in place of its own; the round itself if they are its own."""
        after = self._with(_NAMES, parts)
        after.__post_init__()
        return after

    def no_longer_waiting_for(self, clients: Iterable[ClientId]) -> "Round":
        """Return the round waiting for these clients no longer, nor bound to their results of the next one."""
        clients = tuple(clients)
        return self.without_early(clients).with_parts(self.missing.no_longer(clients, self.tasks.plan.electorate))

    def without_early(self, clients: Iterable[ClientId]) -> "Round":
        """Return the round without these clients' commitments to results of the next one."""
        early = self.early
        for client_id in clients:
            early = removed(early, client_id) if client_id in early else early
        return self if early is self.early else replace(self, early=early)

    def with_verified(self, client_id: ClientId, replica: Blake3, norm: float, elapsed_s: float) -> "Round":
        """Return the round after a client's result was verified.

        Args:
            client_id: whose result it is.
            replica: the digest of the replica from which it was trained.
            norm: its length.
            elapsed_s: seconds since the round's start.
        """
        plan = self.tasks.plan
        results = self.results.with_verified(client_id, replica, norm, plan.positions[client_id])
        missing = self.missing.no_longer((client_id,), plan.electorate).without_rejected(client_id)
        batches = total_batches(plan.assignments[client_id]) if client_id in plan.electorate else 0
        times = self.times.with_delivery(batches, plan.decisive_count, elapsed_s)
        return self.with_parts(results, missing, times)

    def expecting(self, elapsed_s: float) -> "Round":
        """Return the round with the times since when nothing more is expected; the same round if they are known."""
        missing = self.missing
        is_decisive, is_any = bool(missing.decisive_pending), bool(missing.pending)
        return self.with_parts(self.times.expecting(decisive=is_decisive, any_other=is_any, elapsed_s=elapsed_s))

    def closed(self, elapsed_s: float) -> "Round":
        """Return the round as RoundTrain ends, `elapsed_s` after its start."""
        return self.with_parts(self.times.closed(elapsed_s, is_pending=bool(self.missing.pending)))

    def with_arrival(self, client_id: ClientId, **times: Any) -> "Round":
        """Return the round with times at which messages of a client came, by the names in `MessageTimes`."""
        known = self.arrivals.get(client_id, NO_ARRIVALS)
        return replace(self, arrivals=added(self.arrivals, client_id, replace(known, **times)))

    def weighed(self, state: StateFile, clients: Iterable[ClientId]) -> list[Weighed]:
        """Return the verified results of these clients, as far as their factors depend on them."""
        norms, plan = plain(self.results.norms), self.tasks.plan
        assignments, electorate = plan.assignments, plan.electorate
        alone = self.tasks.work.isolated_batches()
        return [
            Weighed(batches, steps_of(state, batches), norms[one], one in electorate, not alone.isdisjoint(assignment))
            for one, assignment, batches in (
                (one, assignments[one], total_batches(assignments[one])) for one in clients
            )
        ]

    def tokens(self, state: StateFile) -> dict[ClientId, int]:
        """Return the tokens for which each result counts to which a client is bound."""
        assignments = self.tasks.plan.assignments
        return {
            one: trained_tokens(state, total_batches(assignments.get(one, ())), report.metrics.sample_tokens)
            for one, report in plain(self.results.commitments).items()
        }


_NAMES: dict[type, str] = {
    RoundNumber: "number",
    RoundTasks: "tasks",
    HeldResults: "results",
    RoundMissing: "missing",
    RoundWitnessed: "witnessed",
    TrainTimes: "times",
}
"""The field of a round that holds each kind of part."""
