"""Bytes on links that are shared fairly: each transfer gets the max-min fair part of every link that it crosses.

The shape is a star. A transfer crosses its client's link and at most one link of a server: the coordinator's, the
object store's, or none, where the other side is never the limit. On each link what is asked for more than there is is
shared equally by connections, as TCP does on average (Bertsekas and Gallager, *Data Networks*, 1992, section 6.5.2).

Transfers on equal links with equally many connections have the same rate, so that they form a class: each class
counts the bytes that one of its connections has moved since it began, and a transfer ends when that count has grown by
its bytes. So an event costs as much as there are classes, whatever the number of transfers.
"""

import heapq
import math
from dataclasses import dataclass, field

from epochal.tools.plan.virtual_time import Signal, Timeline

TCP_WINDOW_BYTES = 14_600
"""Bytes that a connection sends before the first answer: ten segments (RFC 6928)."""
NO_BYTES = 0.5
"""Less than this is nothing: the rest of a sum of floats."""


@dataclass(eq=False, slots=True)
class PlayedTransfer:
    """Bytes that move from or to a client.

    Attributes:
        direction: the client's direction, which it shares with its other transfers.
        server: the server's link that it crosses.
        connections: number of connections over which it goes.
        copies: number of such transfers of other clients for which it stands, itself included.
        done: given when all of it has arrived.
        size_bytes, left_bytes: all of it, and what is left (as of its last change of rate).
    """

    direction: "Direction"
    server: "ServerLink"
    connections: int
    copies: float
    done: Signal
    size_bytes: float
    left_bytes: float
    group: "_Class | None" = None
    ends_at_bytes: float = 0.0
    entry: int = 0


@dataclass(eq=False, slots=True)
class Direction:
    """One direction of a client's link.

    Attributes:
        bytes_per_s: its rate.
        moved_bytes: the bytes that transfers were asked to move over it so far.
    """

    bytes_per_s: float
    moved_bytes: float = 0.0
    transfers: dict[PlayedTransfer, None] = field(default_factory=dict)

    @property
    def connections(self) -> int:
        """Number of connections that share it."""
        return sum(transfer.connections for transfer in self.transfers)


@dataclass(eq=False, slots=True)
class _Class:
    """Transfers that have one rate: `per_connection_s` is their own links' limit for one connection."""

    per_connection_s: float
    connections: int
    copies: float
    count: int = 0
    each_bytes: float = 0.0
    rate_s: float = 0.0
    ends: list[tuple[float, int, PlayedTransfer]] = field(default_factory=list)

    @property
    def all_connections(self) -> float:
        """Number of connections of all transfers, and of those that they represent."""
        return self.count * self.connections * self.copies


class ServerLink:
    """One direction of a server's link, and the transfers over it.

    Args:
        bytes_per_s: its rate; infinite if it is never the limit.
    """

    def __init__(self, timeline: Timeline, bytes_per_s: float = math.inf) -> None:
        self._timeline = timeline
        self.bytes_per_s = bytes_per_s
        self.moved_bytes = 0.0
        self.busy_s = 0.0
        """Seconds for which it was as full as it can be."""
        self._classes: dict[tuple[float, int, float], _Class] = {}
        self._as_of_s = 0.0
        self._is_full = False
        self._is_due = False
        self._wake = 0
        self._number = 0

    def add(self, transfer: PlayedTransfer) -> None:
        """Begin to move a transfer's bytes, or continue with another share of its client's link."""
        self._move_on()
        direction = transfer.direction
        per_connection_s = direction.bytes_per_s / direction.connections
        key = per_connection_s, transfer.connections, transfer.copies
        group = self._classes.get(key)
        if group is None:
            group = self._classes[key] = _Class(*key)
        group.count += 1
        self._number += 1
        transfer.group, transfer.entry = group, self._number
        transfer.ends_at_bytes = group.each_bytes + transfer.left_bytes
        heapq.heappush(group.ends, (transfer.ends_at_bytes, self._number, transfer))
        self._look_soon()

    def remove(self, transfer: PlayedTransfer) -> None:
        """Stop moving a transfer's bytes; `left_bytes` are left."""
        self._move_on()
        group = transfer.group
        assert group is not None
        transfer.left_bytes = max(0.0, transfer.ends_at_bytes - group.each_bytes)
        transfer.group = None
        group.count -= 1
        self._look_soon()

    def _move_on(self) -> None:
        passed_s = self._timeline.now_s - self._as_of_s
        if passed_s <= 0:
            return
        self._as_of_s = self._timeline.now_s
        self.busy_s += passed_s if self._is_full else 0.0
        for group in self._classes.values():
            group.each_bytes += group.rate_s * passed_s

    def _look_soon(self) -> None:
        """Recompute the shares of the link, once for all present changes."""
        if not self._is_due:
            self._is_due = True
            self._timeline.after(0.0, self._share)

    def _share(self) -> None:
        self._is_due = False
        self._move_on()
        for key in [key for key, group in self._classes.items() if not group.count]:
            del self._classes[key]
        self._set_rates()
        soonest_s = math.inf
        for group in [*self._classes.values()]:
            for transfer in _ended_of(group):
                self._end(transfer)
            if group.ends and group.rate_s > 0:
                soonest_s = min(soonest_s, (group.ends[0][0] - group.each_bytes) / group.rate_s)
        self._wake += 1
        if soonest_s < math.inf and not self._is_due:
            wake = self._wake
            self._timeline.after(max(0.0, soonest_s), lambda: self._woken(wake))

    def _woken(self, wake: int) -> None:
        if wake == self._wake and not self._is_due:
            self._share()

    def _end(self, transfer: PlayedTransfer) -> None:
        self.remove(transfer)
        direction = transfer.direction
        del direction.transfers[transfer]
        _share_direction(direction)
        transfer.done.give()

    def _set_rates(self) -> None:
        """Find the level at which everyone's rate, at most its own link's part, adds up to the link's."""
        left_s, connections = self.bytes_per_s, sum(group.all_connections for group in self._classes.values())
        self._is_full = False
        for group in sorted(self._classes.values(), key=lambda group: group.per_connection_s):
            per_connection_s = group.per_connection_s
            if connections > 0 and left_s / connections < per_connection_s:
                per_connection_s, self._is_full = left_s / connections, True
            taken = group.all_connections
            left_s, connections = max(0.0, left_s - taken * per_connection_s), max(0.0, connections - taken)
            group.rate_s = per_connection_s * group.connections


def _ended_of(group: _Class) -> list[PlayedTransfer]:
    """Return the transfers of which nothing is left, without those that are in another class by now."""
    ended = []
    while group.ends:
        at_bytes, entry, transfer = group.ends[0]
        is_here = transfer.group is group and transfer.entry == entry
        if is_here and at_bytes - group.each_bytes > NO_BYTES:
            break
        heapq.heappop(group.ends)
        if is_here:
            ended.append(transfer)
    return ended


def _share_direction(direction: Direction) -> None:
    """Give the transfers of a client's direction their new parts of it."""
    for transfer in direction.transfers:
        if transfer.group is not None:
            transfer.server.remove(transfer)
        transfer.server.add(transfer)


def begin_transfer(
    direction: Direction, server: ServerLink, size_bytes: float, connections: int = 1, copies: float = 1.0
) -> PlayedTransfer:
    """Return a transfer that begins now."""
    transfer = PlayedTransfer(direction, server, connections, copies, Signal(), size_bytes, size_bytes)
    direction.moved_bytes += size_bytes
    if math.isinf(direction.bytes_per_s) and math.isinf(server.bytes_per_s):
        transfer.done.give()
    server.moved_bytes += copies * size_bytes
    if not transfer.done.is_given:
        direction.transfers[transfer] = None
        _share_direction(direction)
    return transfer


def end_transfer(transfer: PlayedTransfer) -> None:
    """Give a transfer up, unless it has ended. The bytes that were not moved are not counted."""
    if transfer.group is None:
        return
    transfer.server.remove(transfer)
    transfer.direction.moved_bytes -= transfer.left_bytes
    transfer.server.moved_bytes -= transfer.copies * transfer.left_bytes
    del transfer.direction.transfers[transfer]
    _share_direction(transfer.direction)


def slow_start_s(size_bytes: float, bytes_per_s: float, round_trip_s: float) -> float:
    """Return by how much longer bytes take because a connection begins slowly: its window doubles each round trip.

    The window begins at `TCP_WINDOW_BYTES` (RFC 6928), after a pause as for a new connection (RFC 5681, section 4.1).
    """
    sent_bytes, window_bytes, took_s = 0.0, float(TCP_WINDOW_BYTES), 0.0
    while window_bytes < bytes_per_s * round_trip_s and sent_bytes + window_bytes < size_bytes:
        sent_bytes, took_s = sent_bytes + window_bytes, took_s + round_trip_s
        window_bytes *= 2
    return max(0.0, took_s - sent_bytes / bytes_per_s) if took_s else 0.0
