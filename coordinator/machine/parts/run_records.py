"""The records of a run beside what decides: reports of commands, notices, losses, the journal's proof."""

from dataclasses import dataclass, replace

from epochal.coordinator.machine.parts.compacted import CompactedJournal
from epochal.state.messages.audit_reports import RecordedAudit
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.shown.notices import Notice
from epochal.state.wire import Sha256
from epochal.state.wire_document import WireDocument

LOSS_HISTORY_LENGTH = 512
"""Maximum number of losses that are kept: the last ones."""


@dataclass(frozen=True, slots=True)
class RunRecords(WireDocument):
    """The records of a run beside what decides.

    Attributes:
        losses: step and mean loss of the last applied rounds.
        evaluations: those that were reported last, in their order.
        audits: those that were reported last, in their order.
        notices: the newest notice of each kind (`coordinator/machine/notices.py`).
        compacted: the part of the journal that is kept as a proof; None if all of it is kept.
    """

    losses: tuple[tuple[int, float], ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    audits: tuple[RecordedAudit, ...] = ()
    notices: tuple[Notice, ...] = ()
    compacted: CompactedJournal | None = None

    def with_loss(self, step: int, loss: float | None) -> "RunRecords":
        """Return the records with the mean loss of a step; the same records if it is not known."""
        return self if loss is None else replace(self, losses=(*self.losses, (step, loss))[-LOSS_HISTORY_LENGTH:])

    def with_proof(self, segment_count: int, proof_sha256: Sha256) -> "RunRecords":
        """Return the records with a proof of the journal; the same records if the known one covers as many segments."""
        if self.compacted is not None and segment_count <= self.compacted.segment_count:
            return self
        return replace(self, compacted=CompactedJournal(segment_count, proof_sha256))
