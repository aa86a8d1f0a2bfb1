"""Notices in the journal: so restarts and other coordinators of the run know what was told, and when.

The rules kept here: of a kind the newest notice is kept; another one of that kind takes its place only after
`[notify] period_s`; what happens once is told once.
"""

from dataclasses import replace

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import NoticeRaised, NoticeSettled
from epochal.state.config.notify_table import MAX_WEBHOOKS, NoticeKind
from epochal.state.shown.notices import Notice


def newest(run: Run, kind: NoticeKind) -> Notice | None:
    """Return the newest notice of a kind; None before the first."""
    return next((notice for notice in run.records.notices if notice.kind == kind), None)


def is_due(run: Run, kind: NoticeKind, subject: str, now_s: float) -> bool:
    """Return whether a notice may be raised: none of its kind was within the period, nor ever one of its subject."""
    earlier = newest(run, kind)
    if earlier is None:
        return True
    is_told = bool(subject) and earlier.subject == subject
    return not is_told and now_s >= earlier.raised_s + run.state_file.notify.period_s


def raised(run: Run, event: NoticeRaised) -> Run:
    """Return the run with the notice as the newest of its kind; the same run if it is not due."""
    if not is_due(run, event.kind, event.subject, run.clock.now_s):
        return run
    others = (notice for notice in run.records.notices if notice.kind != event.kind)
    return run.with_parts(
        replace(run.records, notices=(*others, Notice(event.kind, event.subject, event.message, run.clock.now_s)))
    )


def settled(run: Run, event: NoticeSettled) -> Run:
    """Return the run that knows that a webhook is done with a notice; the same run if a newer one took its place."""
    notice = newest(run, event.kind)
    if notice is None or notice.raised_s != event.raised_s or event.webhook in notice.settled:
        return run
    done = replace(notice, settled=(*notice.settled, event.webhook)[-MAX_WEBHOOKS:])
    return run.with_parts(
        replace(run.records, notices=tuple(done if one is notice else one for one in run.records.notices))
    )
