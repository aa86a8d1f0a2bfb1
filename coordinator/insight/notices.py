"""Notices of a run, as they were raised and delivered: restarts and other coordinators of the run know them.

The rules kept here: of a kind the newest notice is kept; another one of that kind takes its place only after
`[notify] period_s`; a single event is reported once.
"""

from collections.abc import Iterable
from dataclasses import replace

from epochal.coordinator.machine.stimuli import NoticeRaised, NoticeSettled
from epochal.state.config.notify_table import MAX_WEBHOOKS, NoticeKind
from epochal.state.messages.notices import Notice


class NoticeBook:
    """The newest notice of each kind, the one that was raised last at the end."""

    def __init__(self, notices: Iterable[Notice] = ()) -> None:
        self._newest = {notice.kind: notice for notice in notices}

    def notices(self) -> tuple[Notice, ...]:
        """Return the notices."""
        return tuple(self._newest.values())

    def get(self, kind: NoticeKind) -> Notice | None:
        """Return the newest notice of a kind; None before the first."""
        return self._newest.get(kind)

    def is_due(self, kind: NoticeKind, subject: str, now_s: float, period_s: float) -> bool:
        """Return whether a notice may be raised: none of its kind within the period, nor ever one of its subject."""
        earlier = self._newest.get(kind)
        if earlier is None:
            return True
        is_known = bool(subject) and earlier.subject == subject
        return not is_known and now_s >= earlier.raised_s + period_s

    def raised(self, event: NoticeRaised, at_s: float) -> None:
        """Take a notice in as the newest of its kind, if it is due: two coordinators may have raised it."""
        if self.is_due(event.kind, event.subject, at_s, event.period_s):
            self._newest.pop(event.kind, None)
            self._newest[event.kind] = Notice(event.kind, event.subject, event.message, at_s)

    def settled(self, event: NoticeSettled) -> None:
        """Take in that a webhook needs no more of a notice, unless a newer one took its place."""
        notice = self._newest.get(event.kind)
        if notice is not None and notice.raised_s == event.raised_s and event.webhook not in notice.settled:
            done = replace(notice, settled=(*notice.settled, event.webhook)[-MAX_WEBHOOKS:])
            self._newest[event.kind] = done
