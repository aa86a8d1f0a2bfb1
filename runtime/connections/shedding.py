"""The connections of one server: how many each member and address may hold, and which are shed when there are too many.

The rule kept here: strangers go first, then senders, then readers, and a member never makes room for any of them,
unless the server knows that it cannot ask for anything now. A stranger has not sent the head of a request yet; a sender
has, but not its whole body; a reader has sent a whole request, without a token; a member has shown a valid one with its
last request. Among each of the first three the address with the most connections loses its oldest one, so that it
cannot take the places of all others. A member has a bound of its own. Nobody loses a connection before there was time
to ask something: meanwhile others wait in the system's queue. How many come a second is bounded by `AcceptRates`.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from epochal.runtime.connections.per_address import ByAddress
from epochal.runtime.connections.throttled_log import RareLog
from epochal.runtime.connections.token_buckets import MAX_BUCKETS, TokenBuckets

STRANGERS_PER_S = 100
"""Number of connections a second, from addresses without a member, that never show a token: 5 % of a core."""
STRANGERS_AT_ONCE = 1024
KNOWN_PER_S = 1024
"""The same from all addresses together at which a member was seen recently."""
KNOWN_AT_ONCE = 4096
ADDRESS_PER_S = 150
"""The same from one address, with a member or without."""
ADDRESS_AT_ONCE = 1024
KNOWN_S = 3600.0
"""Time for which an address is known after the last connection of a member there: as long as a client comes back."""
_ALL = ""


Pool: TypeAlias = TokenBuckets[str]
LOOPBACK = "127.0.0.1"
"""Address of a server that only programs of the same machine reach."""

log = logging.getLogger(__name__)

MAX_STRANGERS = 4096
"""Maximum number of connections of strangers and senders; an unfinished request takes up to 50 KB of memory."""
MAX_READERS = 8192
MAX_PERCENT_OF_ADDRESS = 75
"""Maximum part of the strangers' and of the readers' places that one address takes. Many clients may share one."""
MIN_PERCENT_OF_STRANGERS = 25
"""Part of the places that readers cannot take from those who are about to ask; nor can senders from strangers."""
STRANGER_GRACE_S = 0.5
"""Time that a new connection has to send its request, before it may be shed."""
MAX_CONNECTIONS_PER_MEMBER = 64
"""Twice as many as a client opens at most."""
SHED_SHOWN_S = 60.0
"""Time for which `/readyz` shows that connections were shed."""
CONNECTION_IN_SCOPE = "epochal.connection"
"""Key of a request's `Connection` in the ASGI scope."""


class AcceptRates:
    """The rates of one server's new connections: in all, of strangers, and of one address.

    Each new connection costs half a millisecond, before and whatever it asks. So it takes a token of its address and of
    all strangers, and gets them back once a member joins by it or shows its valid token: all others are soon out of
    tokens, and refused for 60 microseconds each, most of it in the system. Addresses at which a member was seen
    recently have tokens of their own, which strangers elsewhere cannot use up.
    """

    def __init__(self) -> None:
        self._of_strangers = Pool(STRANGERS_AT_ONCE, 1 / STRANGERS_PER_S)
        self._of_known = Pool(KNOWN_AT_ONCE, 1 / KNOWN_PER_S)
        self._addresses = Pool(ADDRESS_AT_ONCE, 1 / ADDRESS_PER_S)
        self._known: OrderedDict[str, float] = OrderedDict()
        """Until when each address is known."""

    def take(self, address: str, now_s: float) -> Pool | None:
        """Return the pool from which a new connection has taken a token; None if it is to be refused.

        Args:
            address: who sends, as `sender_of` returns it.
            now_s: seconds on a clock that never goes back.
        """
        pool = self._of_known if now_s < self._known.get(address, 0.0) else self._of_strangers
        # The address comes last: addresses of a flood that is refused leave nothing.
        if pool.wait_s(_ALL, now_s) or self._addresses.wait_s(address, now_s):
            return None
        self._pay(address, pool, 1.0)
        return pool

    def give_back(self, address: str, pool: Pool) -> None:
        """Give back what a connection took, because it has shown a member's token."""
        self._pay(address, pool, -1.0)

    def know(self, address: str, now_s: float) -> None:
        """Record that a member was seen at an address."""
        self._known[address] = now_s + KNOWN_S
        self._known.move_to_end(address)
        if len(self._known) > MAX_BUCKETS:
            self._known.popitem(last=False)

    def _pay(self, address: str, pool: Pool, tokens: float) -> None:
        pool.spend(_ALL, tokens)
        self._addresses.spend(address, tokens)


class Peer(StrEnum):
    """The kind of peer at the other end of a connection."""

    STRANGER = "stranger"
    SENDER = "sender"
    READER = "reader"
    MEMBER = "member"


WITHOUT_REQUEST = (Peer.STRANGER, Peer.SENDER)
"""Those who have not sent a whole request yet, in the order in which they make room."""


class Shed(StrEnum):
    """The reason for which the server ended a connection early."""

    TOO_FAST = "too fast"
    """Too many came at about the same time, in all or of one address."""
    STRANGERS = "strangers"
    """There were too many strangers, in all or of one address."""
    READERS = "readers"
    """There were too many readers, in all or of one address."""
    MEMBER = "member"
    """One member had too many connections."""
    CONNECTIONS = "connections"
    """The server had too many connections, or the process too few descriptors."""
    UNREAD = "unread"
    """Its answers were not read, or too slowly."""
    PIPELINED = "pipelined"
    """It sent too many requests without reading an answer."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum numbers of a server's connections."""

    total: int
    strangers: int = MAX_STRANGERS
    readers: int = MAX_READERS
    per_member: int = MAX_CONNECTIONS_PER_MEMBER


@dataclass(eq=False, slots=True)
class Connection:
    """One connection.

    Attributes:
        address: who sends, as `sender_of` returns it.
        abort: ends the connection at once.
        opened_s: when it was accepted, on the server's clock.
        peer: who is at the other end.
        owner: the member, if it is one.
        pool: from which it has taken a token, until it is a member's.
    """

    address: str
    abort: Callable[[], object]
    opened_s: float
    pool: Pool | None = None
    peer: Peer = Peer.STRANGER
    owner: str = ""
    is_held: bool = True
    _is_vouched: bool = field(default=False, repr=False)


class ServerConnections:
    """The connections of one server.

    Args:
        limits: how many there may be.
        monotonic_s: seconds on a clock that never goes back.
        has_claim: returns whether a member may ask for anything now; None: each of them may.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        monotonic_s: Callable[[], float] = time.monotonic,
        has_claim: Callable[[str], bool] | None = None,
    ) -> None:
        self.limits = limits
        self._has_claim = has_claim
        self.shed_counts: Counter[Shed] = Counter()
        self.accept_error_count = 0
        self.rates = AcceptRates()
        self._monotonic_s = monotonic_s
        self._held: dict[Peer, ByAddress[Connection]] = {peer: ByAddress() for peer in Peer}
        self._last_shed_s: dict[Shed, float] = {}
        self._shed_log = RareLog(log, "connections_shed", monotonic_s)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def count(self, peer: Peer) -> int:
        """Return the number of connections of such peers."""
        return len(self._held[peer])

    def wait_s(self) -> float:
        """Return the seconds until another connection can be taken, without shedding one that is too new for it."""
        if len(self) < self.limits.total and self._count(WITHOUT_REQUEST) < self._most(self.limits.strangers):
            return 0.0
        least = self._least()
        if least is None or least.peer not in WITHOUT_REQUEST:
            return 0.0
        return max(0.0, least.opened_s + STRANGER_GRACE_S - self._monotonic_s())

    def admit(self, address: str, abort: Callable[[], object]) -> Connection | None:
        """Take a new connection, and shed another if that needs room; None if too many come, or only members are there.

        Args:
            address: who sends, as `sender_of` returns it.
            abort: ends the connection at once.
        """
        now_s = self._monotonic_s()
        pool = self.rates.take(address, now_s)
        if pool is None:
            self._note_shed(Shed.TOO_FAST)
            return None
        if len(self) >= self.limits.total and not self.shed_least():
            self._note_shed(Shed.CONNECTIONS)
            return None
        connection = Connection(address, abort, now_s, pool)
        self._place(connection, Peer.STRANGER, address)
        self._bound(WITHOUT_REQUEST, address, self.limits.strangers, Shed.STRANGERS)
        return connection

    def has_head(self, connection: Connection) -> None:
        """Record that the head of a request has arrived."""
        if connection.is_held and connection.peer is Peer.STRANGER:
            self._place(connection, Peer.SENDER, connection.address)

    def has_asked(self, connection: Connection) -> None:
        """Record that a whole request has arrived."""
        if connection.is_held and connection.peer in WITHOUT_REQUEST:
            self._become_reader(connection)

    def has_answered(self, connection: Connection) -> None:
        """Record that a request was answered: without a token, a member becomes a reader again."""
        if connection.is_held and connection.peer is Peer.MEMBER and not connection._is_vouched:
            self._become_reader(connection)
        connection._is_vouched = False

    def vouch(self, connection: Connection, owner: str) -> None:
        """Record that the request under way has the valid token of a member."""
        connection._is_vouched = True
        self.rates.know(connection.address, self._monotonic_s())
        if not connection.is_held or (connection.peer, connection.owner) == (Peer.MEMBER, owner):
            return
        self._place(connection, Peer.MEMBER, owner)
        if self._held[Peer.MEMBER].count(owner) > self.limits.per_member:
            oldest = self._held[Peer.MEMBER].oldest(owner)
            if oldest is not None:
                self.shed(oldest, Shed.MEMBER)
        elif connection.pool is not None:
            self.rates.give_back(connection.address, connection.pool)
            connection.pool = None

    def forget(self, connection: Connection) -> None:
        """Record that a connection has ended."""
        if connection.is_held:
            connection.is_held = False
            self._held[connection.peer].remove(connection.owner or connection.address, connection)

    def shed(self, connection: Connection, reason: Shed) -> None:
        """End a connection at once."""
        self.forget(connection)
        self._note_shed(reason)
        connection.abort()

    def shed_least(self) -> bool:
        """End the least important connection; return whether there was one that is no claiming member's."""
        connection = self._least()
        if connection is not None:
            self.shed(connection, Shed.CONNECTIONS)
        return connection is not None

    def _least(self) -> Connection | None:
        """Return the connection that is to make room: one without a request unless others have taken their places."""
        unasked = self._least_without_request()
        if self._count(WITHOUT_REQUEST) * 100 >= self.limits.total * MIN_PERCENT_OF_STRANGERS:
            return unasked
        return self._held[Peer.READER].oldest_of_most() or self._without_claim() or unasked

    def _without_claim(self) -> Connection | None:
        """Return a connection of a member that may not ask for anything now."""
        if self._has_claim is None:
            return None
        members = self._held[Peer.MEMBER]
        idle = next((owner for owner in members.addresses() if not self._has_claim(owner)), None)
        return None if idle is None else members.oldest(idle)

    def _least_without_request(self) -> Connection | None:
        """Return the stranger that is to make room, or a sender if senders have taken their places."""
        strangers, senders = (self._held[peer].oldest_of_most() for peer in WITHOUT_REQUEST)
        places = self._most(self.limits.strangers)
        if self.count(Peer.STRANGER) * 100 >= places * MIN_PERCENT_OF_STRANGERS:
            return strangers
        return senders or strangers

    def _is_new(self, connection: Connection) -> bool:
        return self._monotonic_s() < connection.opened_s + STRANGER_GRACE_S

    def _count(self, peers: tuple[Peer, ...]) -> int:
        return sum(map(self.count, peers))

    def notes(self) -> Iterator[str]:
        """Yield a line for each reason for which connections were shed recently."""
        now_s = self._monotonic_s()
        for reason, shed_s in self._last_shed_s.items():
            if now_s < shed_s + SHED_SHOWN_S:
                yield f"shedding connections ({reason}): {self.shed_counts[reason]} since the start"

    def _become_reader(self, connection: Connection) -> None:
        self._place(connection, Peer.READER, connection.address)
        self._bound((Peer.READER,), connection.address, self.limits.readers, Shed.READERS)

    def _place(self, connection: Connection, peer: Peer, key: str) -> None:
        self._held[connection.peer].remove(connection.owner or connection.address, connection)
        connection.peer, connection.owner = peer, key if peer is Peer.MEMBER else ""
        self._held[peer].add(key, connection)

    def _bound(self, peers: tuple[Peer, ...], address: str, most: int, reason: Shed) -> None:
        """End one connection of such peers, or of such peers at the address, if there are too many."""
        most, surplus = self._most(most), None
        if self._count(peers) > most:
            surplus = self._held[peers[0]].oldest_of_most() if len(peers) == 1 else self._least_without_request()
        elif sum(self._held[peer].count(address) for peer in peers) > max(1, most * MAX_PERCENT_OF_ADDRESS // 100):
            oldest = (self._held[peer].oldest(address) for peer in peers)
            surplus = next((each for each in oldest if each is not None and not self._is_new(each)), None)
        if surplus is not None:
            self.shed(surplus, reason)

    def _most(self, most: int) -> int:
        return min(most, self.limits.total)

    def _note_shed(self, reason: Shed) -> None:
        self.shed_counts[reason] += 1
        self._last_shed_s[reason] = self._monotonic_s()
        self._shed_log.note(reason)


def vouch_for(scope: MutableMapping[str, Any], owner: str) -> Connection | None:
    """Record that a request has a valid token, so that its connection is shed last; return the connection if known.

    Args:
        scope: the request's ASGI scope.
        owner: the member to which the token belongs, or another name for whoever holds it.
    """
    place = scope.get(CONNECTION_IN_SCOPE)
    if place is None:
        return None
    connections: ServerConnections = place[0]
    connection: Connection = place[1]
    connections.vouch(connection, owner)
    return connection


def gone_of(scope: MutableMapping[str, Any], otherwise: Callable[[], bool]) -> Callable[[], bool]:
    """Return what tells whether the connection of a request has ended, `otherwise` where it is not known."""
    place = scope.get(CONNECTION_IN_SCOPE)
    if place is None:
        return otherwise
    connection: Connection = place[1]
    return lambda: not connection.is_held


async def end_connection(scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]]) -> None:
    """End the connection of a request whose answer cannot be completed, and return when it has ended.

    Args:
        scope: the request's ASGI scope.
        receive: returns the request's next ASGI message.
    """
    place = scope.get(CONNECTION_IN_SCOPE)
    if place is not None:
        place[1].abort()
        while (await receive())["type"] != "http.disconnect":
            continue
