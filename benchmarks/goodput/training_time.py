"""How much of the clients' time is training: arithmetic on times, in seconds since 1970."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Span:
    """A time from a start to an end."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s

    def within(self, other: "Span") -> float:
        """Return the seconds of this time that lie in another one."""
        return max(0.0, min(self.end_s, other.end_s) - max(self.start_s, other.start_s))


@dataclass(frozen=True, slots=True)
class Presence:
    """One client: the time from its process's start to its end, and the times in which it trained."""

    alive: Span
    trained: tuple[Span, ...]


def trained_spans(path: Path, now_s: float | None = None) -> tuple[Span, ...]:
    """Return the times that a `TimedNoise` trainer has noted in a file, in order; () if it never trained.

    Args:
        path: of the file.
        now_s: for a trainer that is there still: a training that has not ended counts until now. None for one that is
            gone: what it broke off counts for nothing.
    """
    if not path.exists():
        return ()
    ends: dict[float, float | None] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        noted = json.loads(line)
        ends[noted["start_s"]] = noted.get("end_s", now_s)
    return tuple(Span(start_s, end_s) for start_s, end_s in ends.items() if end_s is not None)


def training_parts(clients: Sequence[Presence], window: Span) -> list[float]:
    """Return, for each client that was there in a window, the part of its time there that was training, in order."""
    parts = []
    for client in clients:
        there_s = client.alive.within(window)
        if there_s > 0:
            parts.append(sum(span.within(window) for span in client.trained) / there_s)
    return parts


def mean_part(clients: Sequence[Presence], window: Span) -> float:
    """Return the part of all clients' time in a window that was training. Raise `ValueError` if nobody was there."""
    there_s = sum(client.alive.within(window) for client in clients)
    if not there_s:
        raise ValueError("no client was there")
    return sum(span.within(window) for client in clients for span in client.trained) / there_s


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that this percentage of all values do not exceed. Raise `ValueError` without values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
