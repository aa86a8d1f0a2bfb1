"""Going back to a kept checkpoint: the run begins a new branch from it, under a new lineage.

The rule kept here ("exactly once", in each branch): every batch below the cursor that was not applied when the
checkpoint was made is carried, suspected, quarantined or skipped afterwards. What ends with the carried batches at the
cursor is given back, as work that nobody was assigned. A batch that was skipped once stays so, whatever is rewound
later.

Everything that was made of rounds after the checkpoint leaves the run: outcomes, updates, later checkpoints, replays,
the round under way and the checkpoint that was being made. Members stay, with their conduct and the trust in them.
"""

from dataclasses import replace

from epochal.coordinator.machine.commands.planned_changes import mixed
from epochal.coordinator.machine.instructions import Instruction, ReplaysDropped, Rewound, SegmentEnded, SweepBlobs
from epochal.coordinator.machine.parts.conduct import Conduct
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.persistent_map import shared
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.run_work import RunWork, WorkAtCheckpoint
from epochal.coordinator.machine.replays.closing import closed
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import RunRewound
from epochal.state.documents import MAX_REWINDS, RewindMark, first_attempt
from epochal.state.errors import Refused
from epochal.state.intervals import BatchId, coalesce, subtract, total_batches
from epochal.state.messages.rewinds import RewindChoice, RewindChoices
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.refusals import Refusal

MAX_SKIPPED = 4_096
"""Maximum number of intervals of skipped batches."""


def rewind(run: Run, event: RunRewound) -> Handled:
    """Return the run as it begins a new branch from a kept checkpoint; the same run if it has done nothing since.

    Raises:
        Refused: `not-found` if no checkpoint of that step is kept, `not-now` beyond `MAX_REWINDS` or `MAX_SKIPPED`.
    """
    models, progress, step = run.models, run.progress, event.to_step
    kept = [checkpoint.step for checkpoint in models.checkpoints]
    if step not in kept:
        allowed = f"allowed: {' or '.join(map(str, kept))}" if kept else "the run has none yet"
        raise Refused(Refusal.NOT_FOUND, f"no checkpoint of step {step} is kept; {allowed}")
    if progress.replica_step == step and run.round is None:
        return run, ()
    if progress.branch >= MAX_REWINDS:
        message = f"the run went back {progress.branch} times; allowed: {MAX_REWINDS}; begin another run from its model"
        raise Refused(Refusal.NOT_NOW, message)
    before = models.work_at[step]
    work, again = work_after(run.work, before, skip=event.skip)
    if len(work.skipped) > MAX_SKIPPED:
        message = f"{len(work.skipped)} intervals of batches would be skipped; allowed: {MAX_SKIPPED}"
        raise Refused(Refusal.NOT_NOW, message)
    mark = RewindMark(progress.branch + 1, step, run.clock.now_s)
    is_in_epoch = run.clock.phase in ROUND_PHASES or run.clock.phase is RunState.COOLDOWN
    after = replace(
        progress,
        epoch=progress.epoch + is_in_epoch,
        step=step + 1,
        attempt=first_attempt(mark.branch),
        height=0,
        drain_rounds=0,
        epoch_start_batch=work.cursor,
        rewound=mark,
    )
    members, told = _members_after(run.members, step)
    told = (
        Rewound(
            mark=mark,
            rounds=progress.replica_step - step,
            batches_again=again,
            batches_skipped=total_batches(work.skipped) - total_batches(run.work.skipped),
        ),
        *told,
        SegmentEnded(after.epoch),
        SweepBlobs(),
    )
    identity = replace(run.identity.back_at(step), lineage=event.lineage)
    run = run.with_parts(identity, after, work, members, _models_after(models, before, step))
    return mixed(replace(run, round=None)), told


def _under_way(run: Run) -> tuple[BatchId, ...]:
    return () if run.round is None else run.round.tasks.work.shared


def work_after(now: RunWork, before: WorkAtCheckpoint, *, skip: bool) -> tuple[RunWork, int]:
    """Return the work of a run that goes back, and how many of its batches are trained again.

    Args:
        now: the present work.
        before: as it was at the checkpoint.
        skip: whether the batches are skipped that were applied since the checkpoint, or are under way.
    """
    left, quarantined = before.left_before(now.cursor), [item.batch_id for item in now.quarantined]
    suspects = [item.batch_id for item in now.suspects]
    due = subtract(left, (*suspects, *quarantined, *now.skipped))
    waiting = tuple(now.carried)
    used = subtract(due, waiting)  # applied since, or under way
    skipped = coalesce((*now.skipped, *used)) if skip else now.skipped
    carried, cursor = (waiting if skip else due), now.cursor
    while carried and carried[-1].end == cursor - 1:
        carried, cursor = carried[:-1], carried[-1].start
    work = replace(
        now,
        cursor=cursor,
        batches_applied=before.batches_applied,
        tokens_applied=before.tokens_applied,
        carried=carried,
        suspects=tuple(replace(item, retry_step=0) for item in now.suspects),
        skipped=skipped,
        next_assignment_seed=None,
        promised=None,
    )
    return work, 0 if skip else total_batches(used)


def _models_after(models: RunModels, before: WorkAtCheckpoint, step: int) -> RunModels:
    """Return the models without those that came after a step."""
    earlier = replace(
        models,
        outcomes={number: outcome for number, outcome in models.outcomes.items() if number <= step},
        updates={number: update for number, update in models.updates.items() if number <= step},
        checkpointing=None,
        usual=before.usual,
        cold_start_step=None,
        rebuild=False,
    )
    return earlier.keeping(tuple(checkpoint for checkpoint in models.checkpoints if checkpoint.step <= step))


def _members_after(members: RunMembers, step: int) -> tuple[RunMembers, tuple[Instruction, ...]]:
    """Return the members without what is known of later steps: nobody's optimizer goes on from them."""
    verification = members.verification
    void = tuple(one for one in verification.open.values() if one.step > step)
    verification = replace(
        closed(verification, void).until(lambda known: known <= step),
        departed=shared({one: replace(trust, counted=None) for one, trust in verification.departed.items()}),
        compared=shared({number: found for number, found in verification.compared.items() if number <= step}),
        counts=replace(verification.counts, dropped=verification.counts.dropped + len(void)),
    )
    members = replace(
        members.with_all({client_id: _member_after(member, step) for client_id, member in members.by_id.items()}),
        departed=shared({client_id: _conduct_after(conduct, step) for client_id, conduct in members.departed.items()}),
        verification=verification,
    )
    return members, (ReplaysDropped(void, f"the run went back to step {step}"),) if void else ()


def _member_after(member: Member, step: int) -> Member:
    joining = replace(member.joining, step=step + 1)  # cold: the state of its optimizer is of later steps
    trust = replace(member.trust, counted=None) if member.trust.counted is not None else member.trust
    return replace(member, joining=joining, conduct=_conduct_after(member.conduct, step), trust=trust)


def _conduct_after(conduct: Conduct, step: int) -> Conduct:
    last = conduct.last_applied_step
    return replace(
        conduct,
        last_applied_step=None if last is None else min(last, step),
        last_work_step=min(conduct.last_work_step, step),
    )


def choices_of(run: Run) -> RewindChoices:
    """Return the steps to which a run can go back, and what each would take back."""
    under_way = total_batches(_under_way(run))
    choices = []
    for checkpoint in run.models.checkpoints:
        work, before = run.work, run.models.work_at[checkpoint.step]
        rounds = run.progress.replica_step - checkpoint.step
        batches, tokens = work.batches_applied - before.batches_applied, work.tokens_applied - before.tokens_applied
        choices.append(RewindChoice(checkpoint.step, rounds, batches, tokens, under_way))
    return RewindChoices(run.progress.replica_step, tuple(choices), run.progress.rewound)
