"""The proof that is kept in the place of a journal's oldest segments: the part of their content that an audit needs.

Theory of operation. Whoever compacts a journal replays the segments first, as an audit does, and keeps the result:
which batches were applied, how often, and the chains of digests (`coordinator/proof/ledger.py`). The proof names the
snapshot with which the journal goes on, and the proof that it continues; the run's own journal names the proof
(`RunIdentity.compacted`). So an audit can go on counting where the proof ends, and a proof that was changed, is
missing or belongs elsewhere is found.
"""

from dataclasses import dataclass

from epochal.coordinator.machine.journal_records import Snapshot
from epochal.coordinator.machine.records import Replayed
from epochal.coordinator.machine.run import Run
from epochal.coordinator.proof.ledger import Ledger, balance, known_digests
from epochal.coordinator.store.sql.history import StoredProof
from epochal.state.errors import InvalidDocument, StoreFailed
from epochal.state.intervals import coalesce
from epochal.state.wire import Blake3, Sha256, canonical_json, parse_document, sha256_hex
from epochal.state.wire_document import WireDocument

PROOF_FORMAT = 5


@dataclass(frozen=True, slots=True)
class JournalProof(WireDocument):
    """The contents of the first segments of a run's journal.

    Attributes:
        segment_count: number of segments that it covers, from the first.
        previous_sha256: digest of the proof that it continues; None for a run's first.
        snapshot_sha256: digest of the snapshot that opens the segment after them.
        sequence, version: number of their last record, and of the document that it published.
        ledger: at their end.
        replica_step, replica_digest: the last replica whose digest is known at their end.
        history: what is shown of the run at their end (`Fold.encoded`), on which no audit depends.
    """

    format: int
    run_id: str
    segment_count: int
    previous_sha256: Sha256 | None
    snapshot_sha256: Sha256
    sequence: int
    version: int
    ledger: Ledger
    replica_step: int | None
    replica_digest: Blake3 | None
    history: str


def proof_of(
    ledger: Ledger, history: str, opening: Replayed, snapshot: Snapshot, count: int, before: Sha256 | None
) -> StoredProof:
    """Return the proof of a journal's first segments.

    Args:
        ledger, history: at their end.
        opening: the run that the snapshot holds, which opens the segment after them.
        snapshot: that snapshot.
        count: number of segments.
        before: digest of the proof from which the ledger goes on.
    """
    known = known_digests(opening.run)
    last, checkpoints = max(known, default=None), opening.run.models.checkpoints
    ledger.settle(checkpoints[0].step if checkpoints else None)
    proof = JournalProof(
        format=PROOF_FORMAT,
        run_id=opening.run.state_file.run_id,
        segment_count=count,
        previous_sha256=before,
        snapshot_sha256=sha256_hex(snapshot.body),
        sequence=snapshot.sequence,
        version=opening.document.version,
        ledger=ledger,
        replica_step=last,
        replica_digest=None if last is None else known[last],
        history=history,
    )
    return StoredProof(count, canonical_json(proof))


def parse_proof(stored: StoredProof) -> JournalProof:
    """Return a stored proof. Raise `StoreFailed` if it cannot be read, or is of other segments than its name says."""
    name = named(stored.segment_count)
    try:
        proof: JournalProof = parse_document(JournalProof, stored.body)
    except InvalidDocument as error:
        raise StoreFailed(f"{name} is damaged: {error.message}") from error
    if proof.format != PROOF_FORMAT:
        raise StoreFailed(f"{name} has format {proof.format}; this program reads {PROOF_FORMAT}")
    if proof.segment_count != stored.segment_count:
        raise StoreFailed(f"{name} is of {proof.segment_count} segments: it was kept for other ones")
    return proof


def named(segment_count: int) -> str:
    """Return how messages name the proof of so many segments."""
    return f"the proof of the journal's first {segment_count} segments"


def join_problems(proof: JournalProof, opening: Replayed, snapshot: Snapshot) -> list[str]:
    """Return why a proof does not end where the journal goes on, or does not balance; nothing if it is right.

    Args:
        proof: of the segments before.
        opening: the run with which the journal goes on.
        snapshot: the snapshot that holds it.
    """
    name, run, ledger, found = named(proof.segment_count), opening.run, proof.ledger, []
    ends = (proof.run_id, proof.sequence, proof.version, proof.snapshot_sha256)
    goes_on = (run.state_file.run_id, opening.sequence, opening.document.version, sha256_hex(snapshot.body))
    if ends != goes_on:
        found.append(f"{name} does not end where segment {proof.segment_count} begins")
    steps, counted = (ledger.last_step + 1, ledger.first_step + ledger.rounds), (run.progress.step, run.progress.step)
    if steps != counted or ledger.applied_count != run.work.batches_applied:
        found.append(
            f"{name} says {ledger.rounds} steps up to {ledger.last_step} and {ledger.applied_count} batches; "
            f"the run had applied steps up to {run.progress.step - 1} and {run.work.batches_applied} batches"
        )
    if coalesce(ledger.applied) != tuple(ledger.applied):
        found.append(f"{name} lists batches out of order or more than once")
    found += [f"{name}: {problem}" for problem in balance(ledger, run).problems]
    if proof.replica_step is not None and known_digests(run).get(proof.replica_step) != proof.replica_digest:
        found.append(f"{name} ends in another replica {proof.replica_step} than the run had")
    return found


def is_named(run: Run, stored: StoredProof) -> bool:
    """Whether the run's journal names this very proof."""
    return run.identity.compacted is not None and run.identity.compacted.proof_sha256 == sha256_hex(stored.body)


def is_named_by(run: Run, stored: StoredProof) -> bool:
    """Whether the run's journal names this proof; or the one that it continues, and the run no newer one."""
    before = parse_proof(stored).previous_sha256
    if run.identity.compacted is None:
        return before is None
    if run.identity.compacted.segment_count < stored.segment_count:
        return run.identity.compacted.proof_sha256 == before
    return is_named(run, stored)
