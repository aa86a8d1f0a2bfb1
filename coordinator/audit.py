"""Proving or disproving a run from its store: the data's ledger from the journal, the parameters from the blobs.

The audit trusts nothing that the coordinator says of itself: it replays every stimulus of every segment, compares each
published document, sums up the outcomes on its own, and (`recompute`) applies the kept results to the older kept
checkpoint and compares every replica digest that a quorum attested on the way.
"""

from dataclasses import dataclass, field

from coordinator.machine.instructions import Instruction, OutcomeDecided
from coordinator.machine.records import ReplayDiffers, Replayed, replay
from coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from coordinator.store.blobs import BlobReader
from coordinator.store.journal import Segment
from coordinator.store.open import StoreReader, open_store_reader
from state.documents import CheckpointRef, Outcome
from state.errors import EpochalError, StoreFailed
from state.intervals import BatchId, coalesce, subtract, total_batches
from state.merging import Contribution, OuterStep, merge, verify_arithmetic
from state.replica import Replica, parse_checkpoint, replica_digest
from state.results import decode_result
from state.wire import sha256_hex

MAX_PROBLEMS = 20
MAX_AUDITS = 10
"""How often a run that goes on is audited until its problems are found twice, or none."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found. All of `rounds` to `unapplied` count outcomes or batches.

    Attributes:
        applied: batches that outcomes applied, each counted once.
        duplicates: batches that were applied more than once.
        missing: batches below the cursor that are neither applied nor carried, under way nor quarantined.
        quarantined: batches set aside by name.
        unapplied: batches that are carried, suspected, or in the round under way.
        replay_identical: every published document was replayed to the same bytes.
        recomputed_steps: replicas that were recomputed and compared; None without `recompute`.
        replicas_identical: whether all of those agree with what was attested; None without `recompute`.
        problems: what is wrong, in words; at most `MAX_PROBLEMS`.
    """

    run_id: str
    rounds: int
    applied: int
    duplicates: int
    missing: int
    quarantined: int
    unapplied: int
    replay_identical: bool
    torn_bytes: int
    recomputed_steps: int | None
    replicas_identical: bool | None
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether the run is proved: nothing doubled, nothing missing, replay and replicas identical."""
        return not self.problems


@dataclass
class _Ledger:
    """Counts outcomes on its own, beside the machine's books."""

    applied: list[BatchId] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def watch(self, _run: Run, instructions: tuple[Instruction, ...]) -> None:
        for instruction in instructions:
            if isinstance(instruction, OutcomeDecided) and instruction.outcome is not None:
                outcome = instruction.outcome
                if outcome.step in self.outcomes:
                    self.problem(f"step {outcome.step} has two outcomes")
                self.outcomes[outcome.step] = outcome
                self.applied += [batch for entry in outcome.entries for batch in entry.assignment]

    def problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


async def audit_store(url: str, *, recompute: bool) -> AuditReport:
    """Audit the run that is kept in a store, without a lock.

    A coordinator that serves it meanwhile may sweep blobs that were needed when the journal was read. So problems
    count only if two audits in a row find the same ones.

    Raises:
        InvalidInput: no run is kept there.
        StoreFailed: the journal cannot be read at all.
    """
    problems: tuple[str, ...] = ()
    for _ in range(MAX_AUDITS):
        report = await audit(open_store_reader(url), recompute=recompute)
        if report.problems == problems:
            break
        problems = report.problems
    return report


async def audit(store: StoreReader, *, recompute: bool) -> AuditReport:
    """Audit a run once.

    Args:
        store: where it is kept.
        recompute: recompute the parameters too; else the ledger alone is audited.

    Raises:
        StoreFailed: the journal cannot be read at all, or there is none.
    """
    ledger = _Ledger()
    last: Replayed | None = None
    identical = True
    first_batch = 0
    async for segment in store.journal.history():
        if last is None:
            first_batch = _first_batch(segment)
        elif not _continues(last, segment):
            identical = False
            ledger.problem(f"segment {segment.number} of the journal does not open where the one before it ended")
        try:
            last = replay(segment, ledger.watch)
        except ReplayDiffers as error:
            identical = False
            ledger.problem(str(error))
            break
    if last is None:
        raise StoreFailed("there is no journal to audit, or its first segment does not replay")
    steps, replicas_identical = await _recompute(last.run, store.blobs, ledger) if recompute else (None, None)
    return _report(last.run, ledger, first_batch, identical, store.journal.torn_bytes, steps, replicas_identical)


def _first_batch(segment: Segment) -> int:
    return replay(Segment(segment.number, segment.snapshot, ())).run.cursor


def _continues(last: Replayed, segment: Segment) -> bool:
    opening = replay(Segment(segment.number, segment.snapshot, ()))
    return opening.sequence == last.sequence and opening.run == parse_snapshot(snapshot_bytes(last.run))


def _report(
    run: Run,
    ledger: _Ledger,
    first_batch: int,
    identical: bool,
    torn_bytes: int,
    steps: int | None,
    replicas_identical: bool | None,
) -> AuditReport:
    under_way = () if run.round is None else run.round.work.shared
    unapplied = (*run.carried, *(suspect.batch_id for suspect in run.suspects), *under_way)
    quarantined = tuple(item.batch_id for item in run.quarantined)
    once = coalesce(ledger.applied)
    duplicates = total_batches(ledger.applied) - total_batches(once)
    whole = (BatchId(first_batch, run.cursor - 1),) if run.cursor > first_batch else ()
    missing = subtract(whole, (*once, *unapplied, *quarantined))
    if duplicates:
        ledger.problem(f"{duplicates} batches were applied more than once")
    if missing:
        ledger.problem(f"{total_batches(missing)} batches are missing, the first of them {missing[0]}")
    beyond = subtract(once, whole)
    if beyond:
        ledger.problem(f"batches {beyond[0]} were applied although no work list held them")
    both = total_batches(once) - total_batches(subtract(once, (*unapplied, *quarantined)))
    if both:
        ledger.problem(f"{both} batches are applied and also carried or quarantined")
    return AuditReport(
        run_id=run.state_file.run_id,
        rounds=len(ledger.outcomes),
        applied=total_batches(once),
        duplicates=duplicates,
        missing=total_batches(missing),
        quarantined=total_batches(quarantined),
        unapplied=total_batches(unapplied),
        replay_identical=identical,
        torn_bytes=torn_bytes,
        recomputed_steps=steps,
        replicas_identical=replicas_identical,
        problems=tuple(ledger.problems),
    )


async def _recompute(run: Run, blobs: BlobReader, ledger: _Ledger) -> tuple[int, bool]:
    """Rebuild every replica since the older kept checkpoint, and compare each with what was attested."""
    if not run.checkpoints and not ledger.outcomes:
        return 0, True  # killed before its first checkpoint, or never joined: nothing is applied, nothing is wrong
    if not run.checkpoints:
        ledger.problem("there is no checkpoint to recompute from")
        return 0, False
    verify_arithmetic()
    known = {checkpoint.step: checkpoint.replica_digest for checkpoint in run.checkpoints}
    known |= {outcome.step - 1: outcome.replica_digest for outcome in ledger.outcomes.values()}
    settings = run.state_file.merge
    outer = OuterStep(settings.outer_lr, settings.outer_momentum)
    compared = 0
    try:
        replica = await _load_checkpoint(run.checkpoints[0], blobs)
        while True:
            if replica.step in known:
                compared += 1
                if replica_digest(replica) != known[replica.step]:
                    ledger.problem(f"replica {replica.step} recomputes to another digest than the attested one")
                    return compared, False
            outcome = run.outcomes.get(replica.step + 1)
            if outcome is None:
                break
            replica = merge(replica, await _contributions(outcome, blobs), outer)
    except EpochalError as error:
        ledger.problem(f"the parameters cannot be recomputed: {error}")
        return compared, False
    if replica.step != run.replica_step:
        ledger.problem(f"recomputing ends at replica {replica.step}; the run is at {run.replica_step}")
        return compared, False
    return compared, True


async def _load_checkpoint(ref: CheckpointRef, blobs: BlobReader) -> Replica:
    data = await blobs.read(ref.blob_sha256)
    if sha256_hex(data) != ref.blob_sha256:
        raise StoreFailed(f"the blob of checkpoint {ref.step} is damaged")
    return parse_checkpoint(data)


async def _contributions(outcome: Outcome, blobs: BlobReader) -> list[Contribution]:
    contributions = []
    for entry in outcome.entries:
        data = await blobs.read(entry.result_sha256)
        if sha256_hex(data) != entry.result_sha256:
            raise StoreFailed(f"result {entry.result_sha256} is damaged")
        contributions.append(Contribution(total_batches(entry.assignment), decode_result(data)[1]))
    return contributions
