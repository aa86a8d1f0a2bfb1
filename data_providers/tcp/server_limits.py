"""The bounds of a data server: connections, memory, and time."""

from dataclasses import dataclass, replace
from typing import Self

CONNECTIONS_PER_FILE = 0.25
"""Most of a process's descriptors that admitted connections use; the coordinator may be in the same process."""
STRANGERS_PER_FILE = 0.125
"""The same for connections that were not admitted yet."""
ADDRESS_SHARE = 0.75
"""Most of the places for admitted clients that one address keeps against others; many clients may be behind one."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a data server.

    Attributes:
        max_connections: of admitted clients. When all are taken, one of a client that is in no round gives way to a
            client that is in one; among clients in no round the longest idle one does, among those in a round an idle
            one of the client that has the most; otherwise the new one gets `unavailable`, may retry, and is closed.
        max_connections_per_client: further connections of one client get `unavailable`. A client needs one, and one for
            each process of its mesh (up to 64); the rest is for connections that broke without the server's notice.
            Not applied by an open gate, which does not distinguish clients.
        max_strangers: connections that were not admitted yet; a further one takes the place of the oldest one of the
            address that has the most.
        max_strangers_per_address: the same, of one address (IPv6: of one network of 64 bits).
        displaced_after_s: time that a stranger has before it may give way; until then no others are accepted.
        max_answer_bytes: the memory of all answers under way; further requests wait. One answer may be larger. One from
            files takes two pieces of `sending.SEND_PIECE_BYTES`, one from another provider its whole size.
        handshake_timeout_s: from the connection to a complete `HELLO`; with TLS its handshake may take as long before.
            The rest of a request whose header has arrived may take as long, too.
        idle_timeout_s: a connection without a request for longer is closed; the client reconnects when it needs to.
        send_timeout_s: for a client to receive one answer.
        least_bytes_per_s: the rate at which a client must receive an answer, on average since `slow_after_s`.
        slow_after_s: time from an answer's first byte in which the rate does not count.
        slow_after_when_full_s: the same while other requests wait for memory.
        answer_wait_s: for a request to wait for memory; then it gets `unavailable`.
        shutdown_timeout_s: for answers under way when the server closes.
    """

    max_connections: int = 1024
    max_connections_per_client: int = 160
    max_strangers: int = 1024
    max_strangers_per_address: int = 768
    displaced_after_s: float = 1.0
    max_answer_bytes: int = 128 * 1024**2
    handshake_timeout_s: float = 5.0
    idle_timeout_s: float = 300.0
    send_timeout_s: float = 60.0
    least_bytes_per_s: float = 64 * 1024
    slow_after_s: float = 10.0
    slow_after_when_full_s: float = 2.0
    answer_wait_s: float = 20.0
    shutdown_timeout_s: float = 5.0

    @property
    def max_connections_per_address(self) -> int:
        """Connections of admitted clients that one address may have when all are taken."""
        return max(int(self.max_connections * ADDRESS_SHARE), 1)

    @property
    def connection_count(self) -> int:
        """Maximum number of connections of both kinds."""
        return self.max_connections + self.max_strangers

    def within(self, open_files: int) -> Self:
        """Return these limits, with no more connections than a process may have that may open so many files."""
        strangers = min(self.max_strangers, int(open_files * STRANGERS_PER_FILE))
        return replace(
            self,
            max_connections=min(self.max_connections, int(open_files * CONNECTIONS_PER_FILE)),
            max_strangers=strangers,
            max_strangers_per_address=min(self.max_strangers_per_address, max(strangers * 3 // 4, 1)),
        )


DEFAULT_LIMITS = ServerLimits()
"""The limits of a data server that is given no others."""
