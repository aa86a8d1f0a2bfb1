"""Auditing a run from its store: was each batch applied exactly once, and are the replicas what the results yield?

The audit does not trust the coordinator: it replays every stimulus of the journal, compares every published document,
and counts the applied batches itself. With `recompute` it also applies the kept results to the older kept checkpoint,
and compares each replica's digest with the one that a quorum attested.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from coordinator.machine.instructions import Instruction, OutcomeDecided
from coordinator.machine.records import ReplayDiffers, Replayed, replay, replay_tail
from coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from coordinator.store.blobs import BlobReader
from coordinator.store.journal import Segment
from coordinator.store.open import StoreReader, open_store_reader
from state.documents import Outcome
from state.errors import EpochalError, StoreFailed
from state.intervals import BatchId, coalesce, subtract, total_batches
from state.merging import Contribution, OuterStep, merge, verify_arithmetic
from state.phases import RunState
from state.replica import Replica, parse_checkpoint, replica_digest
from state.results import decode_result
from state.wire import Sha256, sha256_hex

MAX_PROBLEMS = 20
MAX_AUDITS = 10
"""Maximum number of audits of a running run until two in a row agree."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. `rounds` counts outcomes; `applied` to `unapplied` count batches.

    Attributes:
        applied: batches that outcomes applied, each counted once.
        duplicates: batches that were applied more than once.
        missing: batches below the cursor that are neither applied nor carried, under way nor quarantined.
        quarantined: batches that failed too often and are skipped.
        unapplied: batches that are carried, suspected, or in the round under way.
        replay_identical: whether every published document was replayed to the same bytes.
        recomputed_steps: number of replicas recomputed and compared; None without `recompute`.
        replicas_identical: whether all of those agree with the attested digests; None without `recompute`.
        problems: descriptions of what is wrong, at most `MAX_PROBLEMS`.
        remarks: what an operator should know although the ledger is right: data that the run does not train on.
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
    remarks: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @property
    def clean(self) -> bool:
        """Whether no problem was found, and the run has trained on all data that it has come to."""
        return self.passed and not self.remarks


@dataclass
class _Ledger:
    """Counts batches and outcomes independently of the machine, and collects problems.

    Attributes:
        first_batch: the run's cursor when the journal begins.
        applied: the batches of all outcomes, repetitions included.
    """

    first_batch: int = 0
    applied: list[BatchId] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    replay_identical: bool = True
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

    def differs(self, text: str) -> None:
        self.replay_identical = False
        self.problem(text)


async def audit_store(url: str, *, recompute: bool) -> AuditReport:
    """Audit the run in a store, without a lock.

    A coordinator that serves it meanwhile may delete blobs that were needed when the journal was read. So problems
    count only if two audits in a row find the same ones.

    Raises:
        InvalidInput: there is no run.
        StoreFailed: the journal cannot be read.
    """
    problems: tuple[str, ...] = ()
    for _ in range(MAX_AUDITS):
        report = await audit(open_store_reader(url), recompute=recompute)
        if report.problems == problems:
            break
        problems = report.problems
    return report


async def audit(store: StoreReader, *, recompute: bool) -> AuditReport:
    """Audit a run once, with its parameters if `recompute`, else only its data.

    Raises:
        StoreFailed: the journal cannot be read, or there is none.
    """
    ledger = _Ledger()
    last: Replayed | None = None
    async for segment in store.journal.history():
        try:
            opening = replay(Segment(segment.number, segment.snapshot, ()))
            if last is None:
                ledger.first_batch = opening.run.cursor
            elif (opening.sequence, opening.run) != (last.sequence, parse_snapshot(snapshot_bytes(last.run))):
                ledger.differs(f"segment {segment.number} of the journal does not continue the one before it")
            last = replay_tail(opening, segment.records, ledger.watch)
        except ReplayDiffers as error:
            ledger.differs(str(error))
            break
    if last is None:
        raise StoreFailed("there is no journal to audit, or its first segment does not replay")
    recomputed = await _recompute(last.run, store.blobs, ledger) if recompute else (None, None)
    return _report(last.run, ledger, store.journal.torn_bytes, recomputed)


def _report(run: Run, ledger: _Ledger, torn_bytes: int, recomputed: tuple[int | None, bool | None]) -> AuditReport:
    under_way = () if run.round is None else run.round.work.shared
    unapplied = (*run.carried, *(suspect.batch_id for suspect in run.suspects), *under_way)
    quarantined = tuple(item.batch_id for item in run.quarantined)
    once = coalesce(ledger.applied)
    duplicates = total_batches(ledger.applied) - total_batches(once)
    whole = (BatchId(ledger.first_batch, run.cursor - 1),) if run.cursor > ledger.first_batch else ()
    missing = subtract(whole, (*once, *unapplied, *quarantined))
    beyond = subtract(once, whole)
    both = total_batches(once) - total_batches(subtract(once, (*unapplied, *quarantined)))
    if duplicates:
        ledger.problem(f"{duplicates} batches were applied more than once")
    if missing:
        ledger.problem(f"{total_batches(missing)} batches are missing; the first are {missing[0]}")
    if beyond:
        ledger.problem(f"batches {beyond[0]} were applied although no work list contained them")
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
        replay_identical=ledger.replay_identical,
        torn_bytes=torn_bytes,
        recomputed_steps=recomputed[0],
        replicas_identical=recomputed[1],
        problems=tuple(ledger.problems),
        remarks=_remarks(run, total_batches(once), total_batches(unapplied)),
    )


def _remarks(run: Run, applied_count: int, unapplied_count: int) -> tuple[str, ...]:
    """Return which data the run has not trained on, and why."""
    remarks = []
    if not applied_count:
        remarks.append("no batch was applied: the model is the one that the run began with")
    if run.quarantined:
        first, count = run.quarantined[0], total_batches(item.batch_id for item in run.quarantined)
        remarks.append(
            f"{count} batches are quarantined: the run does not train on them; the first is {first.batch_id}, "
            f"{first.message}"
        )
    if run.suspects:
        first, count = run.suspects[0], total_batches(item.batch_id for item in run.suspects)
        remarks.append(f"{count} batches failed and are not applied; the first are {first.batch_id}, {first.message}")
    if run.phase is RunState.FINISHED and unapplied_count:
        remarks.append(f"the run is finished, and {unapplied_count} batches were never applied")
    return tuple(remarks)


async def _recompute(run: Run, blobs: BlobReader, ledger: _Ledger) -> tuple[int, bool]:
    """Return how many recomputed replicas were compared, and whether all have the digest that was attested."""
    if not run.checkpoints and not ledger.outcomes:
        return 0, True  # stopped before its first checkpoint: nothing is applied
    if not run.checkpoints:
        ledger.problem("there is no checkpoint to recompute from")
        return 0, False
    known = {checkpoint.step: checkpoint.replica_digest for checkpoint in run.checkpoints}
    known |= {outcome.step - 1: outcome.replica_digest for outcome in ledger.outcomes.values()}
    compared, step = 0, 0
    try:
        async for replica in _replicas(run, blobs):
            step = replica.step
            if step in known:
                compared += 1
                if replica_digest(replica) != known[step]:
                    ledger.problem(f"replica {step} recomputes to another digest than was attested")
                    return compared, False
    except EpochalError as error:
        ledger.problem(f"the parameters cannot be recomputed: {error}")
        return compared, False
    if step != run.replica_step:
        ledger.problem(f"recomputing ends at replica {step}; the run is at {run.replica_step}")
        return compared, False
    return compared, True


async def _replicas(run: Run, blobs: BlobReader) -> AsyncIterator[Replica]:
    """Yield all replicas since the older kept checkpoint, recomputed from the kept results."""
    verify_arithmetic()
    outer = OuterStep(run.state_file.merge.outer_lr, run.state_file.merge.outer_momentum)
    replica = parse_checkpoint(await _blob(blobs, run.checkpoints[0].blob_sha256))
    yield replica
    while (outcome := run.outcomes.get(replica.step + 1)) is not None:
        replica = merge(replica, await _contributions(outcome, blobs), outer)
        yield replica


async def _contributions(outcome: Outcome, blobs: BlobReader) -> list[Contribution]:
    results = [(entry, await _blob(blobs, entry.result_sha256)) for entry in outcome.entries]
    return [Contribution(total_batches(entry.assignment), decode_result(data)[1]) for entry, data in results]


async def _blob(blobs: BlobReader, sha256: Sha256) -> bytes:
    data = await blobs.read(sha256)
    if sha256_hex(data) != sha256:
        raise StoreFailed(f"blob {sha256} is damaged")
    return data
