"""Blame: which batches the failures of a round make suspect, which of them leave the run, and how they return.

A client that fails on its data says which batches it blames. They become suspects: each is given to one client alone,
bisected when it fails again, and applied as soon as anybody delivers it. The rules kept here:

- A single batch is quarantined only after `MEMBERS_BEFORE_QUARANTINE` different members failed on exactly this batch,
  each of which had delivered other work lately (`has_delivered_lately`). Until then it is attempted again and again,
  with pauses that grow with each failure, and other work goes on.
- A member that has not delivered lately is believed only where nobody has, as at a run's beginning: then its failures
  single out batches, so that work can go on around them, but never count towards quarantine. As soon as anybody
  delivers, these batches are no longer suspects.
- Data that are only unavailable, and failures of a client's own trainer, say nothing about a batch: it is carried.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from epochal.coordinator.machine.instructions import QuarantineEnded
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_work import RunWork, Suspect
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import BatchesReleased
from epochal.state.errors import FailureKind, Refused
from epochal.state.intervals import BatchId, coalesce, subtract
from epochal.state.messages.requests import FailureReport
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

MEMBERS_BEFORE_QUARANTINE = 3
"""Number of different members that must have failed on a batch, and each delivered other work, to quarantine it."""
MAX_PAUSE_STEPS = 64
"""Longest pause between two attempts at a batch: the number of steps that other work completes meanwhile."""
MAX_SUSPECTED_INTERVALS = 1024
"""Maximum number of suspects. Beyond it, batches that fail are carried like any other work."""
MAX_QUARANTINED_INTERVALS = 1024
"""Maximum number of quarantined intervals. Beyond it the run pauses, because the data is hardly the cause."""
MAX_TRIED = 8
"""Number of clients that last failed on a suspect which are remembered, so that another one gets it next."""
MAX_SUSPECT_MESSAGE_CHARS = 200
MAX_NAMED = 4
"""Maximum number of intervals that a refusal names."""
DATA_FAILURES: frozenset[FailureKind] = frozenset({"corrupt", "out_of_range", "rejected"})
"""The kinds of failures that say something about the data."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Consequences of the failures of a round.

    Attributes:
        suspects: every interval that is now attempted alone.
        quarantined: batches that leave the run with this round.
        blamed: shared work that became suspect with this round.
        cleared: former suspects that are carried.
        must_stop: whether the run must pause, because it may not quarantine a batch that keeps failing.
    """

    suspects: tuple[Suspect, ...]
    quarantined: tuple[Suspect, ...]
    blamed: tuple[BatchId, ...]
    cleared: tuple[BatchId, ...]
    must_stop: bool


def blame_after(run: Run, current: Round, included: AbstractSet[ClientId], applied: Sequence[BatchId]) -> Blame:
    """Return the consequences of the failures of a round.

    Args:
        run: the run before the end of the round.
        current: the round that is over.
        included: the clients whose results are applied.
        applied: the batches that are applied.
    """
    return _Tally(run, current, included).count(applied)


@dataclass
class _Tally:
    """Goes through the assignments of a round, and gathers the consequences."""

    run: Run
    current: Round
    included: AbstractSet[ClientId]
    suspects: list[Suspect] = field(default_factory=list)
    quarantined: list[Suspect] = field(default_factory=list)
    blamed: list[BatchId] = field(default_factory=list)
    must_stop: bool = False

    def count(self, applied: Sequence[BatchId]) -> Blame:
        alone = {item.batch_id for item in self.current.tasks.work.isolated}
        attempted = {s.batch_id: s for s in self.run.work.suspects if s.batch_id in alone}
        self.suspects += (s for s in self.run.work.suspects if s.batch_id not in alone)
        for client_id, assignment in self.current.tasks.plan.assignments.items():
            failure = self._data_failure(client_id)
            if len(assignment) == 1 and assignment[0] in attempted:
                suspect = attempted.pop(assignment[0])
                if failure is not None:
                    self._failed_alone(suspect, client_id, failure)
                elif suspect.batch_id not in applied:
                    self.suspects.append(suspect)
            elif failure is not None and self._is_believed(client_id):
                self._failed_shared(assignment, client_id, failure)
        self.suspects += attempted.values()
        kept = [suspect for suspect in self.suspects if suspect.from_deliverer or not self.included]
        cleared = [suspect for suspect in self.suspects if not suspect.from_deliverer and self.included]
        return Blame(
            suspects=tuple(kept),
            quarantined=tuple(self.quarantined),
            blamed=tuple(self.blamed),
            cleared=coalesce(suspect.batch_id for suspect in cleared),
            must_stop=self.must_stop,
        )

    def _data_failure(self, client_id: ClientId) -> FailureReport | None:
        failure = self.current.missing.failures.get(client_id)
        if failure is None or client_id in self.included or failure.kind not in DATA_FAILURES:
            return None
        return failure

    def _has_delivered_lately(self, client_id: ClientId) -> bool:
        return self.run.members.has_delivered_lately(client_id, self.run.progress.step)

    def _is_believed(self, client_id: ClientId) -> bool:
        if self._has_delivered_lately(client_id):
            return True
        others = (entry.client_id for entry in self.current.tasks.roster.clients)
        return not self.included and not any(self._has_delivered_lately(other) for other in others)

    def _failed_shared(self, assignment: Sequence[BatchId], client_id: ClientId, failure: FailureReport) -> None:
        named = failure.batch_id
        parts = tuple(assignment)
        if named is not None and any(part.covers(named) for part in assignment):
            parts = (named,)
        if len(self.suspects) + len(parts) > MAX_SUSPECTED_INTERVALS:
            return
        self.blamed += parts
        fresh = tuple(self._suspect(part, client_id, (client_id,), failure) for part in parts)
        self.suspects += (self._again(fresh[0], client_id),) if len(parts) == 1 else fresh

    def _failed_alone(self, suspect: Suspect, client_id: ClientId, failure: FailureReport) -> None:
        tried = (*(other for other in suspect.tried if other != client_id), client_id)[-MAX_TRIED:]
        again = replace(suspect, tried=tried, message=_message(failure))
        if not self._is_believed(client_id):
            self.suspects.append(replace(suspect, tried=tried))
        elif suspect.batch_id.count > 1 and len(self.suspects) < MAX_SUSPECTED_INTERVALS:
            parts = _narrowed(suspect.batch_id, failure)
            self.suspects += (self._part(part, client_id, failure) for part in parts)
        else:
            self._keep_or_quarantine(self._again(again, client_id))

    def _part(self, part: BatchId, client_id: ClientId, failure: FailureReport) -> Suspect:
        """Return a part of an interval that failed; the client has failed on exactly this part if it named it."""
        if part == failure.batch_id:
            return self._again(self._suspect(part, client_id, (client_id,), failure), client_id)
        return self._suspect(part, client_id, (), failure)

    def _suspect(
        self, part: BatchId, client_id: ClientId, tried: tuple[ClientId, ...], failure: FailureReport
    ) -> Suspect:
        return Suspect(part, tried, _message(failure), from_deliverer=self._has_delivered_lately(client_id))

    def _again(self, suspect: Suspect, client_id: ClientId) -> Suspect:
        """Return the suspect after one more failure of exactly these batches; only a single batch is paused for it."""
        if suspect.batch_id.count > 1:
            return suspect
        failures = suspect.failures + 1
        against = suspect.against
        if self._has_delivered_lately(client_id) and client_id not in against:
            against = (*against, client_id)
        pause = min(2 ** (failures - 1), MAX_PAUSE_STEPS)
        return replace(suspect, failures=failures, against=against, retry_step=self.current.number.step + pause)

    def _keep_or_quarantine(self, suspect: Suspect) -> None:
        if suspect.batch_id.count > 1 or len(suspect.against) < MEMBERS_BEFORE_QUARANTINE:
            self.suspects.append(suspect)
        elif self._may_not_quarantine():
            self.suspects.append(Suspect(suspect.batch_id, (), suspect.message))
            self.must_stop = True
        else:
            self.quarantined.append(suspect)

    def _may_not_quarantine(self) -> bool:
        count = len(self.run.work.quarantined) + len(self.quarantined)
        return self.run.state_file.config.on_bad_data == "stop" or count >= MAX_QUARANTINED_INTERVALS


def release(work: RunWork, event: BatchesReleased) -> tuple[RunWork, QuarantineEnded]:
    """Carry quarantined batches again: they are attempted with the work of the next round.

    The run attempts carried work in its last rounds, so it gets these rounds anew; a finished run continues.

    Raises:
        Refused: `not-found`, none of these batches is quarantined.
    """
    released = tuple(item.batch_id for item in work.quarantined if event.intervals is None or _is_in(item, event))
    if not released:
        named = "" if event.intervals is None else " among " + ", ".join(map(str, event.intervals[:MAX_NAMED]))
        raise Refused(Refusal.NOT_FOUND, f"no batch{named} is quarantined; the run's quarantine lists those that are")
    return work.released(released), QuarantineEnded(coalesce(released))


def _is_in(quarantined: Suspect, event: BatchesReleased) -> bool:
    return any(interval.covers(quarantined.batch_id) for interval in event.intervals or ())


def _message(failure: FailureReport) -> str:
    return f"{failure.kind}: {failure.message}"[:MAX_SUSPECT_MESSAGE_CHARS]


def _narrowed(interval: BatchId, failure: FailureReport) -> tuple[BatchId, ...]:
    """Return the suspected interval cut around the part that the failure names, which comes first, or into halves."""
    named = failure.batch_id
    if named is not None and interval.covers(named) and named != interval:
        return (named, *subtract((interval,), (named,)))
    return interval.bisect()
