"""Conditions of a run that raise a notice, in words. Pure: they depend on the run and its last round alone.

A condition that lasts, such as too few members, has no subject and is reported again in each period. A single event,
such as a checkpoint, has one, and is reported once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from epochal.coordinator.insight.notices import NoticeBook
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.run import Run
from epochal.state.config.notify_table import NoticeKind
from epochal.state.documents import tries_before
from epochal.state.intervals import total_batches
from epochal.state.messages.notices import MAX_NOTICE_CHARS, MAX_SUBJECT_CHARS
from epochal.state.phase_names import RunState
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible

NEAR_BOUND_PERCENT = 90
"""Part of `max_total_bytes` above which room is little: at 80 the epoch ends, and its checkpoint makes room."""
SHOWN_ID_CHARS = 8
SHOWN_CONVICTIONS = 3
"""Number of convicted clients that a notice names: a period raises one notice."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room that the coordinator has left.

    Attributes:
        blob_bytes: size of all blobs.
        problem: why the store cannot take `[notify] free_bytes` more, or keeps nothing; None if it can.
    """

    blob_bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KnownSoFar:
    """The rounds that have ended, and earlier notices, as far as they are known.

    Attributes:
        not_finite: of the last round: each client whose loss or model was not finite, with its report.
        losses: mean losses of the last applied rounds, the oldest first.
        notices: those that were raised.
    """

    not_finite: Sequence[tuple[str, str]] = ()
    losses: Sequence[float] = ()
    notices: NoticeBook = field(default_factory=NoticeBook)

    @classmethod
    def of(cls, projection: Projection) -> "KnownSoFar":
        """Return what a projection knows."""
        last = (one for detail in projection.last_details(1) for one in detail.clients)
        not_finite = tuple((one.client_id, one.detail) for one in last if one.failure == "not_finite")
        return cls(not_finite, [loss for _, loss in projection.losses()], projection.notices)


@dataclass(frozen=True, slots=True)
class DueNews:
    """A notice that is due."""

    kind: NoticeKind
    subject: str
    message: str


def due_news(run: Run, known: KnownSoFar, room: Room, now_s: float) -> list[DueNews]:
    """Return the notices that are due now: the condition holds, some webhook wants it, and its period is over.

    Args:
        run: as it is kept.
        known: of the run so far.
        room: of the coordinator.
        now_s: seconds on the coordinator's clock.
    """
    notify = run.state_file.notify
    return [
        DueNews(news.kind, news.subject[:MAX_SUBJECT_CHARS], visible(news.message)[:MAX_NOTICE_CHARS])
        for news in _all_news(run, known, room)
        if notify.wants(news.kind) and known.notices.is_due(news.kind, news.subject, now_s, notify.period_s)
    ]


def _all_news(run: Run, known: KnownSoFar, room: Room) -> Iterator[DueNews]:
    has_begun = run.work.next_assignment_seed is not None
    if has_begun and run.clock.phase not in (RunState.FINISHED, RunState.PAUSED):
        yield from _too_few_members(run)
        yield from _no_outcome(run)
        yield from _loss(run, known)
    yield from _quarantine(run)
    yield from _convicted(run)
    yield from _little_room(run, room)
    if run.models.checkpoint is not None and run.models.checkpoint.step:
        message = (
            f"The checkpoint of step {run.models.checkpoint.step} is kept ({run.models.checkpoint.size_bytes:,} bytes)."
        )
        yield DueNews("checkpoint", str(run.models.checkpoint.step), message)
    if run.clock.phase is RunState.FINISHED and has_begun:
        loss = f" The last training loss is {known.losses[-1]:.4g} nats per token." if known.losses else ""
        steps, tokens = counted(run.progress.replica_step, "step"), counted(run.tokens_applied, "token")
        message = f"The run has finished: {steps}, {tokens}.{loss}"
        yield DueNews("end", str(run.progress.replica_step), message)


def _too_few_members(run: Run) -> Iterator[DueNews]:
    least, members = run.state_file.config.min_clients, len(run.available_members())
    if members < least:
        able = f"{counted(members, 'member')} that can work"
        message = f"The run has {able}; it needs {least} (config.min_clients)."
        yield DueNews("members", "", f"{message} It is at step {run.progress.step}, in {run.clock.phase.value}.")


def _no_outcome(run: Run) -> Iterator[DueNews]:
    tries = tries_before(run.progress.attempt)
    if tries >= run.state_file.notify.rounds_without_outcome:
        yield DueNews("no-outcome", "", f"Step {run.progress.step} was tried {tries} times, and nothing was applied.")


def _loss(run: Run, known: KnownSoFar) -> Iterator[DueNews]:
    for client_id, detail in known.not_finite[:1]:
        message = f"Training on client {client_id[:SHOWN_ID_CHARS]} became infinite or undefined: {detail}"
        yield DueNews("loss", "", message)
        return
    notify = run.state_file.notify
    count, losses = notify.loss_rounds, known.losses
    if len(losses) < 2 * count:
        return
    latest = fmean(losses[-count:])
    lowest = min(fmean(losses[end - count : end]) for end in range(count, len(losses) - count + 1))
    if latest - lowest > notify.loss_rise * abs(lowest):
        message = (
            f"The training loss rises: the mean of the last {count} rounds is {latest:.4g} nats per token; "
            f"the lowest such mean before was {lowest:.4g}."
        )
        yield DueNews("loss", "", message)


def _quarantine(run: Run) -> Iterator[DueNews]:
    if run.work.quarantined:
        newest = run.work.quarantined[-1]
        batches = counted(total_batches(item.batch_id for item in run.work.quarantined), "batch", "batches")
        message = f"{batches} in quarantine; the newest are {newest.batch_id}: {newest.message}"
        yield DueNews("quarantine", str(newest.batch_id), message)


def _convicted(run: Run) -> Iterator[DueNews]:
    convicted = run.members.verification.convicted
    if convicted:
        newest = list(convicted)[: -SHOWN_CONVICTIONS - 1 : -1]
        message = (
            f"{counted(len(convicted), 'member')} convicted and ejected (`epochal absolve` takes that back), lastly "
            f"{', '.join(newest)}. The newest: {convicted[newest[0]]}."
        )
        yield DueNews("member_convicted", newest[0], message)


def _little_room(run: Run, room: Room) -> Iterator[DueNews]:
    most = run.state_file.blobs.max_total_bytes
    if room.problem is not None:
        yield DueNews("room", "", f"The coordinator's store has little room: {room.problem}")
    elif room.blob_bytes * 100 > most * NEAR_BOUND_PERCENT:
        message = f"Results and checkpoints take {room.blob_bytes:,} of {most:,} bytes (blobs.max_total_bytes)."
        yield DueNews("room", "", message)
