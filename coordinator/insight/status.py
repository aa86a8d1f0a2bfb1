"""The status of a run: all of it that its operator is shown at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from epochal.coordinator.insight.member_rows import member_rows
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.verification_view import verification_of
from epochal.coordinator.insight.wait_facts import situation_of
from epochal.coordinator.machine.datasets import datasets_of, decided_by
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.liveness import Liveness
from epochal.state.documents import tries_before
from epochal.state.intervals import coalesce, total_batches
from epochal.state.messages.change_messages import announced_changes
from epochal.state.messages.history_rows import GPU_FIGURES
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.messages.requests import MAX_DATASETS_IN_STATUS, FailedBatches, FailedData, RunStatus
from epochal.state.shown.waiting_words import waiting_words

MAX_MEMBERS_IN_STATUS = 200
MAX_LOSSES_IN_STATUS = 256
MAX_FAILED_IN_STATUS = 8
MAX_EVALUATIONS_IN_STATUS = 64
_PLACES = 3


def failed_data_of(run: Run, most: int | None = None) -> FailedData:
    """Return the quarantined batches and those that wait for another attempt, with reasons; at most `most` of each."""

    def views(items: Sequence[Suspect]) -> tuple[FailedBatches, ...]:
        return tuple(FailedBatches(item.batch_id, item.against, item.message) for item in items[:most])

    return FailedData(views(run.work.quarantined), views(run.work.suspects))


@dataclass(frozen=True, slots=True)
class Coordinating:
    """The coordinator as a status shows it.

    Attributes:
        now_s: seconds on its clock.
        liveness: when its members were last heard.
        tokens_per_s: as `speed_of` its last rounds.
        blob_bytes, journal_bytes: sizes of what it keeps.
        problem: why it can keep nothing; None if it can.
    """

    now_s: float
    liveness: Liveness
    tokens_per_s: float
    blob_bytes: int
    journal_bytes: int
    problem: str | None = None


def status_of(
    run: Run, version: int, projection: Projection, coordinator: Coordinating, explanation: str = ""
) -> RunStatus:
    """Return the run as an operator sees it; members beyond `MAX_MEMBERS_IN_STATUS` are counted but not listed.

    Args:
        run: as it is kept.
        version: of the document that it publishes.
        projection: of the run; empty while it is being read.
        coordinator: that serves it.
        explanation: why the run is not faster, in a sentence.
    """
    now_s = coordinator.now_s
    run = run.with_parts(replace(run.clock, now_s=now_s))
    return RunStatus(
        run_id=run.state_file.run_id,
        version=version,
        run_state=run.clock.phase,
        reason=run.clock.reason,
        hold=hold_reason(run.clock, run.members, run.state_file.config),
        phase_remaining_s=None
        if run.clock.phase_ends_s is None
        else round(max(0.0, run.clock.phase_ends_s - now_s), 3),
        epoch=run.progress.epoch,
        step=run.progress.step,
        total_steps=max(1, run.last_step),
        attempt=tries_before(run.progress.attempt),
        rewound=run.progress.rewound,
        skipped_batches=total_batches(run.work.skipped),
        member_count=len(run.members),
        ready_count=len(run.ready_members()),
        resting_count=len(run.members) - len(run.available_members()),
        members=_shown_members(run, projection, coordinator),
        data_indices_applied=run.data_indices_applied,
        tokens_applied=run.tokens_applied,
        tokens_per_s=round(coordinator.tokens_per_s, 1),
        loss=projection.loss,
        gradient_norm=projection.gradient_norm,
        **_gpus_of(projection),
        loss_history=projection.losses(MAX_LOSSES_IN_STATUS),
        evaluations=tuple(one for one in projection.evaluations if not one.is_dropped)[-MAX_EVALUATIONS_IN_STATUS:],
        carried_batches=total_batches(run.work.carried) + total_batches(s.batch_id for s in run.work.suspects),
        waiting_batches=total_batches(item.batch_id for item in run.work.suspects),
        quarantined_batches=total_batches(item.batch_id for item in run.work.quarantined),
        quarantined=coalesce(item.batch_id for item in run.work.quarantined),
        failed_data=failed_data_of(run, MAX_FAILED_IN_STATUS),
        data_fingerprint=run.data.fingerprint,
        data_decided_by=decided_by(run.data, run.work, run.state_file.config.data_fingerprint),
        datasets=datasets_of(run.data, MAX_DATASETS_IN_STATUS),
        checkpoint_step=None if run.models.checkpoint is None else run.models.checkpoint.step,
        blob_bytes=coordinator.blob_bytes,
        journal_bytes=coordinator.journal_bytes,
        store_problem=coordinator.problem,
        pausing=run.progress.pause_pending,
        finish_after=run.progress.finish_after,
        waiting=waiting_words(
            situation_of(run, coordinator.problem, lambda one: coordinator.liveness.silent_s(one, now_s))
        ),
        explanation=explanation,
        verification=None if run.state_file.verify is None else verification_of(run),
        changes=announced_changes(run.identity.state_file, run.identity.applied_count)[run.identity.applied_count :],
    )


def _gpus_of(projection: Projection) -> dict[str, Any]:
    """Return the fields on the GPUs of the clients that reported one in the last round; empty without any."""
    clients = [
        one for detail in projection.last_details(1) for one in detail.clients if one.gpu_utilisation is not None
    ]
    if not clients:
        return {}
    sums = {name: sum(getattr(one, name) for one in clients) for name in GPU_FIGURES}
    return sums | {"gpu_utilisation": round(sums["gpu_utilisation"] / len(clients), _PLACES)}


def _shown_members(run: Run, projection: Projection, coordinator: Coordinating) -> tuple[MemberFigures, ...]:
    """Return the rows of the run's first members, at most `MAX_MEMBERS_IN_STATUS`."""
    silent_s = {
        client_id: coordinator.liveness.silent_s(client_id, coordinator.now_s)
        for client_id in islice(run.members.by_id, MAX_MEMBERS_IN_STATUS)
    }
    present = run.with_parts(replace(run.clock, now_s=coordinator.now_s))
    return tuple(member_rows(present, projection.details, projection.book, silent_s)[0])
