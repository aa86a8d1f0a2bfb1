"""The open connections of a data server, in two pools: strangers, who were not admitted yet, and admitted clients.

The rules kept here: a stranger never takes a client's place, and a client that is in no round never takes the place of
one that is. When a pool is full, the one that has the most gives way: of strangers the oldest connection of the address
that has the most; of clients first those that are in no round, then an idle one of the client that has the most. So
whoever opens thousands of connections, or makes thousands of keys, displaces its own.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.tcp.gate import ANYONE
from epochal.data_providers.tcp.sending import PacedWriter
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.runtime.connections.per_address import ByAddress
from epochal.state.wire import ClientId


@dataclass(eq=False, slots=True)
class ServerConnection:
    """One connection as the server sees it.

    Attributes:
        task: serves it.
        address: of its peer, as `epochal.runtime.connections.per_address` tells senders apart.
        since_s: when it was accepted, on the loop's clock.
        writer: its sending half; None until it is open, which takes a handshake with TLS.
        busy: a request is being answered; otherwise it waits for its client and may be closed at any time.
        client_id: the client, once it was admitted.
        answered_s: when it last received samples, on the loop's clock; None before the first ones.
    """

    task: asyncio.Task[None]
    address: str
    since_s: float
    writer: PacedWriter | None = None
    busy: bool = False
    client_id: ClientId | None = None
    answered_s: float | None = None

    @property
    def used_s(self) -> float:
        """Return since when it has received no samples. Requests that were refused do not count."""
        return self.since_s if self.answered_s is None else self.answered_s

    def abort(self) -> None:
        """Close the connection now, whatever its client has received."""
        if self.writer is None:
            self.task.cancel()
        else:
            self.writer.abort()

    def leave(self, data: bytes) -> None:
        """Send a few last bytes and close the connection once they are sent."""
        if self.writer is None:
            self.task.cancel()
        else:
            self.writer.say(data)
            self.writer.close()

    def say(self, data: bytes) -> None:
        """Send a few last bytes as far as the system takes them at once."""
        if self.writer is not None:
            self.writer.say(data)


class DataConnections:
    """The connections that are open, within the limits. Each is entered, perhaps admitted, and leaves.

    Args:
        limits: the sizes of the pools.
        is_in_rounds: whether a client is in one of the rounds whose samples are served.
    """

    def __init__(self, limits: ServerLimits, is_in_rounds: Callable[[ClientId], bool]) -> None:
        self._limits = limits
        self._is_in_rounds = is_in_rounds
        self._open: set[ServerConnection] = set()
        self._strangers = ByAddress[ServerConnection]()
        self._clients: dict[ClientId, dict[ServerConnection, None]] = {}
        self._admitted = ByAddress[ServerConnection]()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(tuple(self._open))

    @property
    def stranger_count(self) -> int:
        """Number of connections that were not admitted yet."""
        return len(self._strangers)

    @property
    def client_count(self) -> int:
        """Number of connections of admitted clients."""
        return len(self._open) - len(self._strangers)

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the seconds until a stranger from this address can enter; 0 or less if it can now.

        The one that would give way has had `displaced_after_s` by then, so that an honest client is not displaced
        before it could greet, however many others come.
        """
        oldest = self._displaced_by(address)
        return 0.0 if oldest is None else oldest.since_s + self._limits.displaced_after_s - now_s

    def enter(self, connection: ServerConnection) -> ServerConnection | None:
        """Add a stranger. Return the stranger that gave way to it and must be closed now, or None."""
        displaced = self._displaced_by(connection.address)
        if displaced is not None:
            self.leave(displaced)
        self._open.add(connection)
        self._strangers.add(connection.address, connection)
        return displaced

    def admit(self, connection: ServerConnection, client_id: ClientId) -> ServerConnection | None:
        """Make a stranger a client. Return the connection that gave way to it and must be closed now, or None.

        Raises:
            SourceUnavailable: it gave way meanwhile, or the client has too many, or the server is full and nobody can
                give way.
        """
        if connection not in self._open:
            raise SourceUnavailable("the data server is full; the connection gave way to another")
        held_count = len(self._clients.get(client_id, ()))
        if client_id != ANYONE and held_count >= self._limits.max_connections_per_client:
            raise SourceUnavailable(f"client {client_id} already has {held_count} connections, the maximum")
        displaced = None
        if self.client_count >= self._limits.max_connections:
            displaced = None if client_id == ANYONE else self._gives_way_to(connection.address, client_id)
            if displaced is None:
                raise SourceUnavailable("the data server is full")
            self.leave(displaced)
        self._strangers.remove(connection.address, connection)
        connection.client_id = client_id
        self._clients.setdefault(client_id, {})[connection] = None
        self._admitted.add(connection.address, connection)
        return displaced

    def leave(self, connection: ServerConnection) -> None:
        """Remove a connection if it is still here."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        if connection.client_id is None:
            self._strangers.remove(connection.address, connection)
            return
        self._admitted.remove(connection.address, connection)
        held = self._clients[connection.client_id]
        del held[connection]
        if not held:
            del self._clients[connection.client_id]

    def _displaced_by(self, address: str) -> ServerConnection | None:
        """Return the stranger that gives way to another one from this address, or None if there is room for both."""
        if self._strangers.count(address) >= self._limits.max_strangers_per_address:
            return self._strangers.oldest(address)
        return self._strangers.oldest_of_most() if self.stranger_count >= self._limits.max_strangers else None

    def _gives_way_to(self, address: str, client_id: ClientId) -> ServerConnection | None:
        """Return the connection that gives way to another of this client from this address, or None.

        Any of a client that is in no round gives way to a client that is in one, because no request of it can succeed;
        idle ones first. Otherwise an idle one of an equal gives way, which is of an address above its share, or whose
        client has more: in no round, at least as many as the newcomer's will have, so that the longest idle one goes.
        A newcomer from an address that has its share takes a place of the same address.
        """
        in_rounds: list[ServerConnection] = []
        outside: list[ServerConnection] = []
        for holder, held in self._clients.items():
            if holder != ANYONE:
                (in_rounds if self._is_in_rounds(holder) else outside).extend(held)
        is_in_rounds = self._is_in_rounds(client_id)
        if is_in_rounds and outside:
            return min(outside, key=lambda held: (held.busy, *self._rank(held)))
        least_count = len(self._clients.get(client_id, ())) + (2 if is_in_rounds else 1)
        has_share = self._admitted.count(address) >= self._limits.max_connections_per_address
        candidates = [
            held
            for held in (in_rounds if is_in_rounds else outside)
            if not held.busy
            and (held.address == address or not has_share)
            and (self._held_beside(held) >= least_count or (self._is_above_share(held) and not has_share))
        ]
        return min(candidates, key=self._rank, default=None)

    def _rank(self, held: ServerConnection) -> tuple[bool, int, float]:
        """Return the order in which connections give way, the first one least."""
        return not self._is_above_share(held), -self._held_beside(held), held.used_s

    def _held_beside(self, held: ServerConnection) -> int:
        """Return the number of connections of an admitted connection's client."""
        return 0 if held.client_id is None else len(self._clients[held.client_id])

    def _is_above_share(self, held: ServerConnection) -> bool:
        return self._admitted.count(held.address) > self._limits.max_connections_per_address
