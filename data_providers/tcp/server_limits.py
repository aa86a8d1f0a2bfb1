"""The bounds of a data server: connections, memory, and time."""

from dataclasses import dataclass, replace
from typing import Self

from epochal.runtime.connections.shedding import ConnectionLimits

CONNECTIONS_PER_FILE = 0.375
"""Most of a process's descriptors that connections use; the coordinator may be in the same process."""
CONNECTIONS = ConnectionLimits(total=2048, strangers=1024, per_member=160)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a data server.

    Attributes:
        connections: how many there may be; `runtime/connections/shedding.py` says which give way. A client needs one,
            and one for each process of its mesh (up to 64); the rest is for those that broke without notice.
        max_answer_bytes: the memory of all answers under way; further requests wait. One answer may be larger.
        handshake_timeout_s: for a complete `HELLO`, and for the rest of a request whose header has arrived.
        idle_timeout_s: a connection without a request for longer is closed; the client reconnects when it needs to.
        send_timeout_s: for a client to receive one answer.
        least_bytes_per_s: the rate at which a client must receive an answer, on average since `slow_after_s`.
        slow_after_s: time from an answer's first byte in which the rate does not count.
        slow_after_when_full_s: the same while other requests wait for memory.
        answer_wait_s: for a request to wait for memory; then it gets `unavailable`.
        shutdown_timeout_s: for answers under way when the server closes.
    """

    connections: ConnectionLimits = CONNECTIONS
    max_answer_bytes: int = 128 * 1024**2
    handshake_timeout_s: float = 5.0
    idle_timeout_s: float = 300.0
    send_timeout_s: float = 60.0
    least_bytes_per_s: float = 64 * 1024
    slow_after_s: float = 10.0
    slow_after_when_full_s: float = 2.0
    answer_wait_s: float = 20.0
    shutdown_timeout_s: float = 5.0

    def within(self, open_files: int) -> Self:
        """Return these limits, with no more connections than a process may have that may open so many files."""
        total = min(self.connections.total, int(open_files * CONNECTIONS_PER_FILE))
        return replace(self, connections=replace(self.connections, total=total, strangers=max(1, total // 2)))


DEFAULT_LIMITS = ServerLimits()
"""The limits of a data server that is given no others."""
