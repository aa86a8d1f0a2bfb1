"""The run document that a run publishes, and the blobs that it waits for and keeps."""

from dataclasses import dataclass
from typing import TypeAlias

from epochal.coordinator.machine.parts.checkpointers import current_checkpointer, may_write
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.run_work import RunWork
from epochal.coordinator.machine.replays.reveals import challenges_of
from epochal.coordinator.machine.run import Run
from epochal.state.config.state_file import Progress, StateFile, dump_state
from epochal.state.documents import (
    DOCUMENT_FORMAT,
    MAX_REASON_CHARS,
    CheckpointRef,
    RoundAhead,
    RoundHead,
    RunDocument,
    UpdateRef,
)
from epochal.state.intervals import total_batches
from epochal.state.messages.blob_messages import EagerStart, ExpectedResult
from epochal.state.messages.requests import CheckpointReport, ResultCommitment
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.wire import ClientId, Sha256, document_digest

Known: TypeAlias = tuple[Run, RunDocument]
"""An earlier run and its document, of which the next one shares what has not changed."""


def document_of(run: Run, version: int, known: Known | None = None) -> RunDocument:
    """Return the run document that the run publishes, as `version`. It is the same with and without a known one."""
    current = run.round if run.clock.phase in ROUND_PHASES else None
    failed = _failed_batches(run.work, known)
    return RunDocument(
        format=DOCUMENT_FORMAT,
        run_id=run.state_file.run_id,
        lineage=run.identity.lineage,
        version=version,
        run_state=run.clock.phase,
        phase_started_s=run.clock.phase_started_s,
        phase_ends_s=run.clock.phase_ends_s,
        reason=run.clock.reason[:MAX_REASON_CHARS],
        epoch=run.progress.epoch,
        step=run.progress.step,
        total_steps=max(1, run.last_step),
        cursor=run.work.cursor,
        epoch_start_data_index=run.epoch_start_data_index,
        data_indices_applied=run.data_indices_applied,
        carried_batches=failed[0],
        quarantined_batches=failed[1],
        round=None if current is None else _round_head(current, known),
        last_outcome_sha256=_outcome_digest(run.models, run.progress.replica_step, known),
        rebuild=run.models.rebuild,
        checkpointer=current_checkpointer(run.models, run.members),
        checkpointing_step=None if run.models.checkpointing is None else run.models.checkpointing.step,
        checkpoint=run.models.checkpoint,
        config_sha256=run.identity.config_sha256,
        model_sha256=run.models.spec_sha256,
        cold_start_step=run.models.cold_start_step,
        data_fingerprint=run.data.fingerprint,
        coordinator_key=run.identity.coordinator_key,
        ahead=None if current is None else _ahead(current),
        update=run.models.updates.get(run.progress.replica_step),
        rewound=run.progress.rewound,
    )


def _ahead(current: Round) -> RoundAhead | None:
    return None if current.ahead is None else RoundAhead(current.ahead.roster_sha256, current.ahead.work_sha256)


def _failed_batches(work: RunWork, known: Known | None) -> tuple[int, int]:
    """Return the numbers of carried and of quarantined batches."""
    if known is not None:
        before, document = known
        is_same = work.carried is before.work.carried and work.suspects is before.work.suspects
        if is_same and work.quarantined is before.work.quarantined:
            return document.carried_batches, document.quarantined_batches
    carried = total_batches(work.carried) + total_batches(suspect.batch_id for suspect in work.suspects)
    return carried, total_batches(item.batch_id for item in work.quarantined)


def _outcome_digest(models: RunModels, step: int, known: Known | None) -> Sha256 | None:
    """Return the digest of the last outcome; None if it is not kept."""
    last = models.outcomes.get(step)
    if last is None:
        return None
    if known is not None:
        before, document = known
        if (
            before.models.outcomes.get(before.progress.replica_step) is last
            and document.last_outcome_sha256 is not None
        ):
            return Sha256(document.last_outcome_sha256)
    return document_digest(last)


def _round_head(current: Round, known: Known | None) -> RoundHead:
    if known is not None:
        before, document = known
        if before.round is not None and before.round.tasks.plan is current.tasks.plan and document.round is not None:
            return document.round  # whatever has arrived since, its head is the same
    return RoundHead(
        step=current.number.step,
        attempt=current.number.attempt,
        height=current.number.height,
        seed=current.tasks.seed,
        assignment_seed=current.tasks.assignment_seed,
        cursor=current.tasks.cursor,
        batches=current.tasks.work.batch_count(),
        roster_sha256=current.tasks.roster_sha256,
        roster_count=len(current.tasks.roster.clients),
        work_sha256=current.tasks.work_sha256,
        witness_count=len(current.tasks.plan.witnesses),
        usual_norm=None if current.results.usual is None else current.results.usual.norm,
        usual_steps=1 if current.results.usual is None else current.results.usual.steps,
    )


@dataclass(frozen=True, slots=True)
class ExpectedPart:
    """A part of a checkpoint that the run waits for, or all of it.

    Attributes:
        claim: the client's announcement of the checkpoint.
    """

    client_id: ClientId
    sha256: Sha256
    size_bytes: int
    claim: CheckpointReport


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """An inner state that a client is to reveal."""

    client_id: ClientId
    sha256: Sha256
    size_bytes: int


ExpectedBlob: TypeAlias = ExpectedResult | ExpectedPart | ExpectedState
"""A blob that a client announced, and that the run waits for."""


def expected_blob(run: Run, client_id: ClientId, sha256: Sha256) -> ExpectedBlob | None:
    """Return the blob that this client announced under this digest and may deliver now, or None."""
    current = run.round
    if current is not None and run.clock.phase is RunState.ROUND_TRAIN:
        found = current.results.commitments.get(client_id)
        if found is not None and found.result_sha256 == sha256 and client_id not in current.missing.rejected:
            return expected_result(run.state_file, current, client_id, found)
    making = run.models.checkpointing
    if making is not None and may_write(run.models, run.members, client_id):
        claim = making.claims.by_client.get(client_id)
        size_bytes = None if claim is None else dict(claim.blobs()).get(sha256)
        if claim is not None and size_bytes is not None:
            return ExpectedPart(client_id, sha256, size_bytes, claim)
    state = next((one for one in challenges_of(run, client_id) if one.sha256 == sha256), None)
    return None if state is None else ExpectedState(client_id, sha256, state.size_bytes)


def expected_result(
    state_file: StateFile, current: Round, client_id: ClientId, commitment: ResultCommitment
) -> ExpectedResult:
    """Return what the result must be to which a client commits in a round."""
    merge, work, starts, start = state_file.merge, current.tasks.work_sha256, current.tasks.starts, None
    if starts is not None and client_id in starts.results:
        start = EagerStart(starts.replica_digest, starts.results[client_id])
    return ExpectedResult(state_file.run_id, client_id, commitment, work, merge.codec_name, merge.max_abs, start)


def may_read_results(run: Run, client_id: ClientId | None) -> bool:
    """Whether a client may read others' results of the round under way: commit before reveal.

    While somebody of the roster may still publish a result, only those may that have committed to their own. One
    without work, or that has failed, would otherwise be able to pass others' results on. Afterwards everybody may.
    """
    current = run.round
    if current is None or run.clock.phase is not RunState.ROUND_TRAIN or not current.missing.pending:
        return True
    return client_id in current.results.commitments


def is_revealed(run: Run, client_id: ClientId, sha256: Sha256) -> bool:
    """Whether a member may read this blob now: others' results of the round under way only by `may_read_results`."""
    if run.round is None or may_read_results(run, client_id):
        return True
    assert run.round.results.digests is not None
    return sha256 not in run.round.results.digests


def is_of_model(run: Run, sha256: Sha256) -> bool:
    """Whether a blob is one of a kept checkpoint or update."""
    return any(sha256 == blob for file in _files_of_model(run) for blob, _ in run.models.blobs_of(file))


def _files_of_model(run: Run) -> tuple[CheckpointRef | UpdateRef, ...]:
    return (*run.models.checkpoints, *run.models.updates.values())


@dataclass(frozen=True, slots=True)
class KeptBlob:
    """A blob that a run relies on: what it is, its digest and its size."""

    purpose: str
    sha256: Sha256
    size_bytes: int


def blobs_kept(run: Run) -> tuple[KeptBlob, ...]:
    """Return the blobs that have arrived and must be there, the newest checkpoint's first; each digest once."""
    files = [(ref.purpose, run.models.blobs_of(ref)) for ref in reversed(run.models.checkpoints)]
    making = run.models.checkpointing
    if making is not None:
        purpose, claims = f"the checkpoint of step {making.step}", making.claims
        files += [(purpose, claims.by_client[client_id].blobs()) for client_id in claims.held]
    files += [(ref.purpose, run.models.blobs_of(ref)) for ref in reversed(list(run.models.updates.values()))]
    kept = [
        KeptBlob(f"{_part_name(number, len(blobs))}{purpose}", sha256, size_bytes)
        for purpose, blobs in files
        for number, (sha256, size_bytes) in enumerate(blobs, 1)
    ]
    if run.round is not None:
        for client_id in run.round.results.verified:
            bound = run.round.results.commitments[client_id]
            kept.append(KeptBlob(f"a result of step {run.round.number.step}", bound.result_sha256, bound.size_bytes))
    for outcome in reversed(list(run.models.outcomes.values())):
        purpose = f"a result of step {outcome.step}"
        kept += [KeptBlob(purpose, entry.result_sha256, entry.size_bytes) for entry in outcome.entries]
    for replay in run.members.verification.kept():
        kept.append(KeptBlob(f"a result of step {replay.step} to replay", replay.result_sha256, replay.size_bytes))
        revealed = () if replay.states is None else replay.states.files()
        kept += [
            KeptBlob(f"an inner state of step {replay.step} to replay", Sha256(file.sha256), file.size_bytes)
            for file in revealed
            if file not in replay.awaited
        ]
    once: dict[Sha256, KeptBlob] = {}
    for blob in kept:
        once.setdefault(blob.sha256, blob)
    return tuple(once.values())


def _part_name(number: int, count: int) -> str:
    return "" if count == 1 else f"part {number} of {count} of "


def blobs_needed(run: Run) -> frozenset[Sha256]:
    """Return the blobs that must stay: of kept checkpoints, updates and outcomes, of the round, and of replays."""
    needed = {sha256 for file in _files_of_model(run) for sha256, _ in run.models.blobs_of(file)}
    needed |= run.members.verification.blobs()
    for outcome in run.models.outcomes.values():
        needed.update(entry.result_sha256 for entry in outcome.entries)
    if run.round is not None:
        kept = (
            report
            for client, report in run.round.results.commitments.items()
            if client not in run.round.missing.rejected
        )
        needed.update(report.result_sha256 for report in kept)
    if run.models.checkpointing is not None:
        needed.update(
            sha256 for claim in run.models.checkpointing.claims.by_client.values() for sha256, _ in claim.blobs()
        )
    return frozenset(needed)


def state_file_text(run: Run) -> str:
    """Return the run as a `state.toml`, from which a new run can start."""
    progress = Progress(
        epoch=run.progress.epoch, step=run.progress.step, epoch_start_data_index=run.epoch_start_data_index
    )
    return dump_state(run.identity.state_file.with_progress(run.clock.phase, progress))
