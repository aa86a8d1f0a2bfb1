"""Auditing a run from its store: was each batch applied exactly once, and are the replicas what the results yield?

The audit does not trust the coordinator: it replays every stimulus of the journal, compares every published document,
counts the applied batches itself, and reads every blob that the run relies on. Where a journal was compacted, it goes
on from the proof, which must balance, join the journal, and be the one that the journal names. With `recompute` it also
applies the kept results to the older kept checkpoint, and compares each replica's digest with the one that a quorum
attested. A publication (`coordinator/proof/publishing.py`) is compared with its signed manifest; the coordinator's
private key, which every other store holds, is not in it.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.machine.instructions import Instruction, Rewound
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.records import Kept, ReplayDiffers, Replayed, replay
from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.machine.run import Run, parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.views import blobs_kept
from epochal.coordinator.proof.counted_replay import REPLAYING, replay_records
from epochal.coordinator.proof.journal_proof import is_named_by, join_problems, named, parse_proof
from epochal.coordinator.proof.kept_blobs import damaged_records, wrong_blobs
from epochal.coordinator.proof.ledger import Ledger, balance, known_digests
from epochal.coordinator.proof.publishing import check_publication
from epochal.coordinator.proof.recompute import Recomputed, recompute
from epochal.coordinator.store.files.folder import FolderPlace
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.published_files import FolderFiles
from epochal.coordinator.store.sql.history import JournalReader, StoredProof
from epochal.coordinator.store.sql.notes import BACKUP, KEY_LOST, PUBLISHED, Keys
from epochal.coordinator.store.store import StoreReader
from epochal.runtime.long_work import long_work
from epochal.runtime.rewind_words import shown_rewind
from epochal.state.client_names import shown_client
from epochal.state.errors import StoreFailed
from epochal.state.intervals import total_batches
from epochal.state.phase_names import RunState
from epochal.state.text.amounts import counted
from epochal.state.wire import Blake3

MAX_PROBLEMS = 20
MAX_AUDITS = 10
"""Maximum number of audits of a running run until two in a row agree."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. `rounds` counts outcomes of the present branch; `applied` to `unapplied` count batches.

    Attributes:
        compacted_segments: number of the journal's segments that are kept as a proof.
        record_chain, replica_chain: hashes over all records, and over all outcomes with their replicas (`Ledger`); an
            earlier audit of the same records gave the same, whatever was compacted since.
        applied: batches that outcomes applied, each counted once.
        duplicates: batches that were applied more than once.
        missing: batches below the cursor that are neither applied nor carried, under way nor quarantined.
        quarantined: batches that failed too often and are skipped.
        skipped: batches that an operator passed over as the run went back (`epochal rewind --skip`).
        unapplied: batches that are carried, suspected, or in the round under way.
        rewinds, dropped_rounds: number of times that the run went back, and of outcomes that this took back.
        replay_identical: whether every published document was replayed to the same bytes.
        blobs: number of blobs that the run relies on, each of which was read.
        wrong_blobs: number of those that are missing, have another size or other bytes.
        evaluations: number of evaluations that were reported.
        recomputed_steps: number of replicas recomputed and compared; None without `recompute`.
        recomputed: how many of the run's steps those are, and why not all; None without `recompute`.
        replicas_identical: whether all of those agree with the attested digests; None without `recompute`.
        problems: descriptions of what is wrong, at most `MAX_PROBLEMS`.
        remarks: what an operator should know although the ledger is right: data that the run does not train on.
    """

    run_id: str
    rounds: int
    compacted_segments: int
    record_chain: str
    replica_chain: str
    applied: int
    duplicates: int
    missing: int
    quarantined: int
    skipped: int
    unapplied: int
    rewinds: int
    dropped_rounds: int
    replay_identical: bool
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


@dataclass
class _Findings:
    """Collects what an audit finds; `ledger` counts batches and outcomes independently of the machine."""

    ledger: Ledger | None = None
    attested: dict[int, Blake3] = field(default_factory=dict)
    compacted: int = 0
    begins: int = 0
    blobs: int = 0
    wrong_blobs: int = 0
    replay_identical: bool = True
    problems: list[str] = field(default_factory=list)

    def watch(self, _run: Run, instructions: tuple[Instruction, ...], _kept: Kept) -> None:
        assert self.ledger is not None, "a segment opens before its records are replayed"
        for one in instructions:
            if isinstance(one, Rewound):  # the branch that follows has replicas of its own
                self.attested = {step: digest for step, digest in self.attested.items() if step <= one.mark.step}
        last_step = self.ledger.last_step
        for outcome in self.ledger.take(instructions):
            if outcome.step <= last_step:
                self.problem(f"step {outcome.step} has two outcomes")
            known = self.attested.setdefault(outcome.step - 1, outcome.replica_digest)
            if known != outcome.replica_digest:
                self.problem(f"step {outcome.step} was attested to begin with another replica than the one before left")

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
    async with store.place.copying():
        return await _audit(store, with_parameters=with_parameters)


async def _audit(store: StoreReader, *, with_parameters: bool) -> AuditReport:
    found = _Findings()
    stored = max(await store.journal.proofs(), key=lambda proof: proof.segment_count, default=None)
    last = await _replayed(store.journal, stored, found)
    for problem in await store.journal.problems():
        found.problem(problem)
    _check_named(last.run, stored, found)
    async for wrong in wrong_blobs(last.run, store.blobs):
        found.blobs += 1
        if wrong is not None:
            found.wrong_blobs += 1
            found.problem(wrong)
    async for wrong in damaged_records(store.recorded_blobs, {blob.sha256 for blob in blobs_kept(last.run)}):
        found.problem(wrong)
    if isinstance(store.place, FolderPlace) and await store.notes.read(BACKUP) == PUBLISHED:
        for problem in await check_publication(FolderFiles(store.place.run_dir), last.run.identity.coordinator_key):
            found.problem(problem)
    elif (wrong_key := await _wrong_key(last.run, store.keys)) is not None:
        found.problem(wrong_key)
    assert found.ledger is not None, "a journal was replayed"
    recomputed = None
    if with_parameters:
        recomputed = await recompute(last.run, store.blobs, found.attested, found.ledger.rounds)
        if recomputed.problem is not None:
            found.problem(recomputed.problem)
    return _report(last.run, found.ledger, found, recomputed)


async def _replayed(journal: JournalReader, stored: StoredProof | None, found: _Findings) -> Replayed:
    """Replay the journal from its beginning, or from the end of the proof; return the run after the last record."""
    last: Replayed | None = None
    begins = 0 if stored is None else stored.segment_count
    newest = await journal.newest_segment()
    total = None if newest is None else newest + 1 - begins
    with long_work(REPLAYING, total, "segments") as work:
        async for segment in journal.history():
            try:
                opening = replay(Segment(segment.number, segment.snapshot, ()))
                if last is None:
                    found.ledger = _first_ledger(opening, segment, stored, found)
                elif (opening.sequence, opening.run) != (last.sequence, parse_snapshot(snapshot_bytes(last.run))):
                    found.differs(f"segment {segment.number} of the journal does not continue the one before it")
                last = replay_records(opening, segment.records, work, found.watch, anew=True, count_of_all=1)
            except ReplayDiffers as error:
                found.differs(str(error))
                break
            assert found.ledger is not None, "the first segment was opened"
            found.ledger.take_records(segment.records)
    if last is None:
        raise StoreFailed("there is no journal to audit, or its first segment does not replay")
    return last


def _first_ledger(opening: Replayed, segment: Segment, stored: StoredProof | None, found: _Findings) -> Ledger:
    """Return the ledger as the journal's first kept segment begins."""
    found.begins = segment.number
    found.attested.update(known_digests(opening.run))
    if stored is None:
        if segment.number:
            found.problem(f"the journal begins with segment {segment.number}; earlier ones are missing")
        return Ledger.begin(opening.run)
    found.compacted = stored.segment_count
    try:
        proof = parse_proof(stored)
    except StoreFailed as error:
        found.problem(error.message)
        return Ledger.begin(opening.run)
    for problem in join_problems(proof, opening, segment.snapshot):
        found.problem(problem)
    return proof.ledger


def _check_named(run: Run, stored: StoredProof | None, found: _Findings) -> None:
    """Note a problem unless the journal names the proof, and its replicas end in the oldest kept checkpoint."""
    if stored is None and found.begins and run.identity.compacted is not None:
        found.problem(
            f"{named(run.identity.compacted.segment_count)}, which the journal names, is missing; restore a backup"
        )
    if stored is not None:
        with contextlib.suppress(StoreFailed):  # it is damaged, and noted
            if not is_named_by(run, stored):
                found.problem(f"{named(stored.segment_count)} is not the one that the journal names")
        oldest = run.models.checkpoints[0] if run.models.checkpoints else None
        if oldest is not None and found.attested.get(oldest.step, oldest.replica_digest) != oldest.replica_digest:
            found.problem(f"the kept checkpoint of step {oldest.step} is of another replica than was attested")


async def _wrong_key(run: Run, keys: Keys) -> str | None:
    """Return what is wrong with the coordinator's key that is kept with the run, or None."""
    try:
        private_key = await keys.private_key()
    except StoreFailed as error:
        return error.message
    found = "none" if private_key is None else SigningKey(private_key).public_key_hex
    if found == run.identity.coordinator_key:
        return None
    return f"the coordinator's key is {found}, but the run's is {run.identity.coordinator_key}; {KEY_LOST}"


def _report(run: Run, ledger: Ledger, found: _Findings, recomputed: Recomputed | None) -> AuditReport:
    batches = balance(ledger, run)
    for problem in batches.problems:
        found.problem(problem)
    return AuditReport(
        run_id=run.state_file.run_id,
        rounds=ledger.rounds,
        compacted_segments=found.compacted,
        record_chain=ledger.record_chain,
        replica_chain=ledger.replica_chain,
        applied=batches.applied,
        duplicates=batches.duplicates,
        missing=batches.missing,
        quarantined=batches.quarantined,
        skipped=batches.skipped,
        unapplied=batches.unapplied,
        rewinds=ledger.rewinds,
        dropped_rounds=ledger.dropped_rounds,
        replay_identical=found.replay_identical,
        blobs=found.blobs,
        wrong_blobs=found.wrong_blobs,
        evaluations=ledger.evaluations,
        recomputed_steps=None if recomputed is None else recomputed.compared_count,
        recomputed=None if recomputed is None else recomputed.scope,
        replicas_identical=None if recomputed is None else recomputed.problem is None,
        problems=tuple(found.problems),
        remarks=_remarks(run, batches.applied, batches.unapplied),
    )


def _failed_on(run: Run, suspect: Suspect) -> str:
    """Return the clients that failed on batches, with the names of those that are members."""
    members = [run.members.by_id.get(client_id) for client_id in suspect.against]
    shown = [
        shown_client(client_id, "" if member is None else member.name)
        for client_id, member in zip(suspect.against, members, strict=True)
    ]
    return f" (on {', '.join(shown)})" if shown else ""


def _counted(suspects: Sequence[Suspect]) -> str:
    return counted(total_batches(item.batch_id for item in suspects), "batch", "batches")


def _remarks(run: Run, applied_count: int, unapplied_count: int) -> tuple[str, ...]:
    """Return which data the run has not trained on and why, and why it does not go on."""
    remarks = []
    if not applied_count:
        remarks.append("no batch was applied: the model is the one that the run began with")
    hold = hold_reason(run.clock, run.members, run.state_file.config)
    if hold is not None:
        remarks.append(f"the run waits: {hold}")
    if run.work.quarantined:
        first, batches = run.work.quarantined[0], _counted(run.work.quarantined)
        remarks.append(
            f"quarantined, and not trained on: {batches}; the first is {first.batch_id}, "
            f"{first.message}{_failed_on(run, first)}"
        )
    if run.progress.rewound is not None:
        remarks.append(shown_rewind(run.progress.rewound, total_batches(run.work.skipped)))
    if run.work.suspects:
        first, batches = run.work.suspects[0], _counted(run.work.suspects)
        remarks.append(f"failed, and not applied: {batches}; the first is {first.batch_id}, {first.message}")
    if run.clock.phase is RunState.FINISHED and unapplied_count:
        remarks.append(f"the run is finished without having applied {counted(unapplied_count, 'batch', 'batches')}")
    return tuple(remarks)
