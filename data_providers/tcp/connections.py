"""The open connections of a data server, in two pools: strangers, who were not admitted yet, and admitted clients.

The rule kept here: a stranger never takes a client's place. When a pool is full, the one that has the most gives way:
of strangers the oldest connection of the address that has the most, of clients an idle one of the client that has the
most. So whoever opens thousands of connections displaces its own.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from data_providers.protocol import SourceUnavailable
from data_providers.tcp.gate import ANYONE
from data_providers.tcp.limits import ServerLimits
from data_providers.tcp.sending import PacedWriter
from runtime.by_address import ByAddress
from state.wire import ClientId


@dataclass(eq=False, slots=True)
class ServerConnection:
    """One connection as the server sees it.

    Attributes:
        address: of its peer, as `runtime.by_address` tells senders apart.
        since_s: when it was accepted, on the loop's clock.
        busy: a request is being answered; otherwise it waits for its client and may be closed at any time.
        client_id: the client, once it was admitted.
    """

    reader: asyncio.StreamReader
    writer: PacedWriter
    task: asyncio.Task[None]
    address: str
    since_s: float
    busy: bool = False
    client_id: ClientId | None = None


class DataConnections:
    """The connections that are open, within the limits. Each is entered, perhaps admitted, and leaves."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._open: set[ServerConnection] = set()
        self._strangers = ByAddress[ServerConnection]()
        self._clients: dict[ClientId, dict[ServerConnection, None]] = {}

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
            SourceUnavailable: it gave way meanwhile, or the client has too many, or the server is full and nobody has
                more who could give way.
        """
        if connection not in self._open:
            raise SourceUnavailable("the data server is full; the connection gave way to another")
        held_count = len(self._clients.get(client_id, ()))
        if client_id != ANYONE and held_count >= self._limits.max_connections_per_client:
            raise SourceUnavailable(f"client {client_id} already has {held_count} connections, the maximum")
        displaced = None
        if self.client_count >= self._limits.max_connections:
            displaced = self._idle_beyond(held_count + 1)
            if displaced is None:
                raise SourceUnavailable("the data server is full")
            self.leave(displaced)
        self._strangers.remove(connection.address, connection)
        connection.client_id = client_id
        self._clients.setdefault(client_id, {})[connection] = None
        return displaced

    def leave(self, connection: ServerConnection) -> None:
        """Remove a connection if it is still here."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        if connection.client_id is None:
            self._strangers.remove(connection.address, connection)
            return
        held = self._clients[connection.client_id]
        del held[connection]
        if not held:
            del self._clients[connection.client_id]

    def _displaced_by(self, address: str) -> ServerConnection | None:
        """Return the stranger that gives way to another one from this address, or None if there is room for both."""
        if self._strangers.count(address) >= self._limits.max_strangers_per_address:
            return self._strangers.oldest(address)
        return self._strangers.oldest_of_most() if self.stranger_count >= self._limits.max_strangers else None

    def _idle_beyond(self, count: int) -> ServerConnection | None:
        """Return the oldest idle connection of the client that has the most, if it has more than `count`."""
        named = [pool for client_id, pool in self._clients.items() if client_id != ANYONE]
        most = max(named, key=len, default={})
        if len(most) <= count:
            return None
        return next((held for held in most if not held.busy), None)
