"""The hours of a day in which a client takes part, such as `22-07` or `12:30-13:30,22-07`, in local time. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from epochal.state.errors import InvalidInput

DAY_MINUTES = 24 * 60
MAX_WINDOWS = 24
HOURS_FORM = "windows of local time, such as 22-07 or 12:30-13:30,22-07, each of two different times from 00 to 24"
_WINDOW = re.compile(r"(\d{1,2})(?::(\d{2}))?-(\d{1,2})(?::(\d{2}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hours:
    """Windows of the day, each from its first minute up to, but without, its last; over midnight if that is smaller.

    Attributes:
        windows: the first and the last minute of each, from 0 to 1440.
    """

    windows: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, place: str, text: str) -> "Hours":
        """Return the hours that a text names. Raise `InvalidInput`, which names the value and what is allowed."""
        parts = text.split(",")
        windows = [_window(part.strip()) for part in parts]
        wrong = [part.strip() for part, window in zip(parts, windows, strict=True) if window is None]
        if wrong or len(windows) > MAX_WINDOWS:
            reason = repr(wrong[0][:40]) if wrong else f"{len(windows)} windows, more than {MAX_WINDOWS}"
            raise InvalidInput(f"{place} {text[:60]!r}: {reason}; allowed: {HOURS_FORM}")
        return cls(tuple(window for window in windows if window is not None))

    def hold(self, local: datetime) -> bool:
        """Whether a local time is within the hours."""
        minute = local.hour * 60 + local.minute
        return any(
            first <= minute < last if first < last else minute >= first or minute < last for first, last in self.windows
        )

    def next_change(self, local: datetime) -> datetime:
        """Return the first whole minute after a local time at which the hours begin or end.

        Where no such minute comes within a day, which is so for a window of the whole day, return the time a day later.
        """
        whole, now = local.replace(second=0, microsecond=0), self.hold(local)
        edges = {edge % DAY_MINUTES for window in self.windows for edge in window}
        minute = whole.hour * 60 + whole.minute
        for wait in sorted((edge - minute - 1) % DAY_MINUTES + 1 for edge in edges):
            at = whole + timedelta(minutes=wait)
            if self.hold(at) != now:
                return at
        return whole + timedelta(days=1)


def _window(text: str) -> tuple[int, int] | None:
    found = _WINDOW.fullmatch(text)
    if found is None:
        return None
    first, last = (
        int(hour) * 60 + int(minute or 0) if int(minute or 0) < 60 else DAY_MINUTES + 1
        for hour, minute in ((found[1], found[2]), (found[3], found[4]))
    )
    return (first, last) if first < DAY_MINUTES and last <= DAY_MINUTES and first != last else None
