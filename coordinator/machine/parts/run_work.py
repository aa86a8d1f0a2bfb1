"""The work of a run: which batches were applied, and which are still to be.

The rule kept here ("exactly once"): every batch below the cursor is applied, carried, suspected, quarantined, skipped,
or in the work list of the round under way.
"""

from dataclasses import dataclass, replace

from epochal.coordinator.machine.parts.planned_ahead import PromisedRound
from epochal.state.intervals import BatchId, coalesce
from epochal.state.weights import UsualNorm
from epochal.state.wire import ClientId, Seed
from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class Suspect:
    """Batches on which clients failed, and why.

    Attributes:
        tried: the last clients that failed on them, oldest first; another one gets them next.
        message: kind and text of the last failure that was believed.
        against: the different members that failed on exactly this batch and had delivered other work lately.
        failures: number of failures on exactly this batch that were believed.
        retry_step: the first step in which they are attempted again.
        from_deliverer: whether the client that made them suspect had delivered other work lately. If not, they are
            carried as soon as anybody delivers.
    """

    batch_id: BatchId
    tried: tuple[ClientId, ...]
    message: str
    against: tuple[ClientId, ...] = ()
    failures: int = 0
    retry_step: int = 0
    from_deliverer: bool = True


@dataclass(frozen=True, slots=True)
class RunWork(WireDocument):
    """The work of a run.

    Attributes:
        cursor: the first batch that was never assigned.
        batches_applied, tokens_applied: number of batches that outcomes applied, and of their tokens.
        carried: batches of earlier rounds that no outcome applied, in the order of their next attempts.
        suspects: batches that failed and are attempted alone.
        quarantined: batches that left the run.
        skipped: batches that an operator passed over as the run went back (`commands/rewinding.py`), in order.
        next_assignment_seed: the last round's seed, which permutes the next one's proven clients; None before a round.
        promised: the work of the next round, if it was drawn ahead and the last round was applied. Its batches are
            still carried, or beyond the cursor.
    """

    cursor: int
    batches_applied: int = 0
    tokens_applied: int = 0
    carried: tuple[BatchId, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    quarantined: tuple[Suspect, ...] = ()
    next_assignment_seed: Seed | None = None
    promised: PromisedRound | None = None
    skipped: tuple[BatchId, ...] = ()

    def is_left(self) -> bool:
        """Return whether batches were begun that are neither applied nor quarantined."""
        return bool(self.carried or self.suspects)

    def left(self) -> tuple[BatchId, ...]:
        """Return the batches that were begun, and are neither applied, nor quarantined, nor in a round."""
        return (*self.carried, *(suspect.batch_id for suspect in self.suspects))

    def released(self, batches: tuple[BatchId, ...]) -> "RunWork":
        """Return the work with these quarantined batches carried again, before all others."""
        kept = tuple(item for item in self.quarantined if item.batch_id not in batches)
        return replace(self, carried=coalesce(batches) + self.carried, quarantined=kept)


@dataclass(frozen=True, slots=True)
class WorkAtCheckpoint:
    """The work of a run as a replica was agreed, before any round that trained from it: the run may go back to it.

    Attributes:
        cursor: the first batch that had not been assigned.
        batches_applied: number of batches that outcomes had applied.
        tokens_applied: number of their tokens.
        left: the batches below the cursor that were neither applied nor skipped: carried ones in the order of their
            next attempts, suspects, and quarantined ones.
        usual: how long the results of the last applied round were.
    """

    cursor: int
    batches_applied: int
    tokens_applied: int
    left: tuple[BatchId, ...]
    usual: UsualNorm | None

    @classmethod
    def of(cls, work: RunWork, usual: UsualNorm | None) -> "WorkAtCheckpoint":
        """Return the present work, between two rounds."""
        left = (*work.left(), *(item.batch_id for item in work.quarantined))
        return cls(work.cursor, work.batches_applied, work.tokens_applied, left, usual)

    def left_before(self, cursor: int) -> tuple[BatchId, ...]:
        """Return the batches below a later cursor that were neither applied nor skipped, in the order of the work."""
        return (*self.left, BatchId(self.cursor, cursor - 1)) if cursor > self.cursor else self.left
