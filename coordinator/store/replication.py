"""How the coordinators of one run that share its store know of each other: they meet there, several times a second.

In a meeting each leaves its heartbeats, takes those of the others, and learns whether it ticks: the holder of a lease
does. The lease only elects: what keeps the history one is the compare-and-swap of each record (`journal.py`).
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epochal.state.wire import ClientId

MEETING_S = 0.5
"""Time between two meetings."""
LEASE_S = 2.0
"""Time after the last meeting for which a coordinator is taken for alive, and ticks if it holds the lease."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program that serves a run.

    Attributes:
        version: of Epochal.
        rules: version of the rules under which it replays a journal. Those that serve one run agree in it.
    """

    version: str
    rules: int


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The knowledge of one coordinator of the members that send requests to it, in seconds on the run's clock.

    Attributes:
        heard: when a member was last heard, if that is not long ago; now, if a request of it waits.
        closed: since when a member has closed the connections of its waits.
        now_s: the time on its clock; None if it is not known. One that starts beside it continues from there.
    """

    heard: Mapping[ClientId, float] = field(default_factory=dict)
    closed: Mapping[ClientId, float] = field(default_factory=dict)
    now_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MeetingResult:
    """The knowledge that a coordinator takes from a meeting.

    Attributes:
        is_ticking: whether it holds the lease, for `LEASE_S` from the beginning of the meeting.
        sequence: number of the journal's last record.
        others: heartbeats of each other coordinator that is alive.
    """

    is_ticking: bool
    sequence: int
    others: tuple[Heartbeats, ...]


class Replication(Protocol):
    """The meetings of one coordinator with the others of its run. Methods raise `StoreBlocked` if the store fails."""

    def news(self) -> AsyncGenerator[int | None, None]:
        """Yield the number of a record whenever one may have been appended; None if some may have been missed.

        It goes on, and waits, while the store fails.
        """

    async def meet(self, mine: Heartbeats) -> MeetingResult:
        """Leave heartbeats, and take those of the others."""

    async def leave(self) -> None:
        """Give the lease back, so that another one ticks at once; a store that fails is left after a bounded time."""
