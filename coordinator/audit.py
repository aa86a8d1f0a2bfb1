"""Auditing a run from its store: was each batch applied exactly once, and are the replicas what the results yield?

The audit does not trust the coordinator: it replays every stimulus of the journal, compares every published document,
counts the applied batches itself, and reads every blob that the run relies on. With `recompute` it also applies the
kept results to the older kept checkpoint, and compares each replica's digest with the one that a quorum attested.
"""

from dataclasses import dataclass, field

from coordinator.auth.signing_key import SigningKey
from coordinator.kept_blobs import wrong_blobs
from coordinator.machine.hold import hold_reason
from coordinator.machine.instructions import Instruction, OutcomeDecided
from coordinator.machine.records import ReplayDiffers, Replayed, replay, replay_tail
from coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from coordinator.recompute import Recomputed, recompute
from coordinator.store.journal import JournalReader, Segment
from coordinator.store.keys import KEY_LOST, CoordinatorKeyReader
from coordinator.store.open import StoreReader, open_store_reader
from state.documents import Outcome
from state.errors import StoreFailed
from state.intervals import BatchId, coalesce, counted_batches, subtract, total_batches
from state.phases import RunState

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
        torn_bytes: size of an incomplete last record, which nobody was told of.
        damaged_bytes: size of a complete last record with a wrong checksum, which somebody may have been told of.
        blobs: number of blobs that the run relies on, each of which was read.
        wrong_blobs: number of those that are missing, have another size or other bytes.
        evaluations: number of evaluations in the run's history.
        recomputed_steps: number of replicas recomputed and compared; None without `recompute`.
        recomputed: how many of the run's steps those are, and why not all; None without `recompute`.
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
    damaged_bytes: int
    blobs: int
    wrong_blobs: int
    evaluations: int
    recomputed_steps: int | None
    recomputed: str | None
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
    blobs: int = 0
    wrong_blobs: int = 0
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

    A coordinator that serves it meanwhile holds its sweeps back, but not for ever: it may delete blobs that were needed
    when the journal was read. So problems count only if two audits in a row find the same ones.

    Raises:
        InvalidInput: there is no run.
        StoreFailed: the journal cannot be read.
    """
    problems: tuple[str, ...] = ()
    for _ in range(MAX_AUDITS):
        report = await audit(open_store_reader(url), with_parameters=recompute)
        if report.problems == problems:
            break
        problems = report.problems
    return report


async def audit(store: StoreReader, *, with_parameters: bool) -> AuditReport:
    """Audit a run once, `with_parameters`, else only its data and its blobs.

    Raises:
        StoreFailed: the journal cannot be read, or there is none.
    """
    async with store.copying():
        return await _audit(store, with_parameters=with_parameters)


async def _audit(store: StoreReader, *, with_parameters: bool) -> AuditReport:
    ledger = _Ledger()
    last: Replayed | None = None
    async for segment in store.journal.history():
        try:
            opening = replay(Segment(segment.number, segment.snapshot, ()))
            if last is None:
                ledger.first_batch = opening.run.cursor
                if segment.number:
                    ledger.problem(f"the journal begins with segment {segment.number}; earlier ones are missing")
            elif (opening.sequence, opening.run) != (last.sequence, parse_snapshot(snapshot_bytes(last.run))):
                ledger.differs(f"segment {segment.number} of the journal does not continue the one before it")
            last = replay_tail(opening, segment.records, ledger.watch)
        except ReplayDiffers as error:
            ledger.differs(str(error))
            break
    if last is None:
        raise StoreFailed("there is no journal to audit, or its first segment does not replay")
    if store.journal.damaged_bytes:
        ledger.problem(
            f"the journal's last record is damaged ({store.journal.damaged_bytes} bytes), and clients may have seen "
            "what it said; a start drops it and takes them back to the state before it"
        )
    async for wrong in wrong_blobs(last.run, store.blobs):
        ledger.blobs += 1
        if wrong is not None:
            ledger.wrong_blobs += 1
            ledger.problem(wrong)
    wrong_key = await _wrong_key(last.run, store.keys)
    if wrong_key is not None:
        ledger.problem(wrong_key)
    recomputed = None
    if with_parameters:
        attested = {outcome.step - 1: outcome.replica_digest for outcome in ledger.outcomes.values()}
        recomputed = await recompute(last.run, store.blobs, attested, len(ledger.outcomes))
        if recomputed.problem is not None:
            ledger.problem(recomputed.problem)
    return _report(last.run, ledger, store.journal, recomputed)


async def _wrong_key(run: Run, keys: CoordinatorKeyReader) -> str | None:
    """Return what is wrong with the coordinator's key that is kept with the run, or None."""
    try:
        private_key = await keys.private_key()
    except StoreFailed as error:
        return error.message
    found = "none" if private_key is None else SigningKey(private_key).public_key_hex
    if found == run.coordinator_key:
        return None
    return f"the coordinator's key is {found}, but the run's is {run.coordinator_key}; {KEY_LOST}"


def _report(run: Run, ledger: _Ledger, journal: JournalReader, recomputed: Recomputed | None) -> AuditReport:
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
        torn_bytes=journal.torn_bytes,
        damaged_bytes=journal.damaged_bytes,
        blobs=ledger.blobs,
        wrong_blobs=ledger.wrong_blobs,
        evaluations=len(run.evaluations),
        recomputed_steps=None if recomputed is None else recomputed.compared_count,
        recomputed=None if recomputed is None else recomputed.scope,
        replicas_identical=None if recomputed is None else recomputed.problem is None,
        problems=tuple(ledger.problems),
        remarks=_remarks(run, total_batches(once), total_batches(unapplied)),
    )


def _remarks(run: Run, applied_count: int, unapplied_count: int) -> tuple[str, ...]:
    """Return which data the run has not trained on and why, and why it does not go on."""
    remarks = []
    if not applied_count:
        remarks.append("no batch was applied: the model is the one that the run began with")
    hold = hold_reason(run)
    if hold is not None:
        remarks.append(f"the run waits: {hold}")
    if run.quarantined:
        first, count = run.quarantined[0], total_batches(item.batch_id for item in run.quarantined)
        remarks.append(
            f"quarantined, and not trained on: {counted_batches(count)}; the first is {first.batch_id}, {first.message}"
        )
    if run.suspects:
        first, count = run.suspects[0], total_batches(item.batch_id for item in run.suspects)
        remarks.append(
            f"failed, and not applied: {counted_batches(count)}; the first is {first.batch_id}, {first.message}"
        )
    if run.phase is RunState.FINISHED and unapplied_count:
        remarks.append(f"the run is finished without having applied {counted_batches(unapplied_count)}")
    return tuple(remarks)
