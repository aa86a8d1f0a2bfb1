"""The part of a run's journal that is kept as a proof, as the run names it."""

from dataclasses import dataclass

from epochal.state.wire import Sha256


@dataclass(frozen=True, slots=True)
class CompactedJournal:
    """The part of the journal in whose place a proof is kept (`coordinator/proof/journal_proof.py`).

    Attributes:
        segment_count: number of segments that the proof covers, from the first.
        proof_sha256: digest of the proof's bytes.
    """

    segment_count: int
    proof_sha256: Sha256

    def unless_shorter_than(self, known: "CompactedJournal | None") -> "CompactedJournal":
        """Return this one; the known one if that covers as many segments."""
        return self if known is None or self.segment_count > known.segment_count else known
