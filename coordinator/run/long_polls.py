"""Requests that wait for news: how many there may be, in pools of their own for members, data servers and strangers."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.retry import system_jitter
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

MAX_HOLD_S = 20.0
MAX_MORE_HOLD_S = 10.0
"""A stranger without a place is refused only after the wait that it asked for, at most `MAX_HOLD_S`, and a random time
up to `MAX_MORE_HOLD_S`: refused at once, thousands would ask again at once."""
RETRY_AFTER_S = 5.0
"""Time for which it is then asked to wait."""


class ReaderKind(Enum):
    """Whose requests they are, which decides their pool."""

    MEMBER = "member"
    DATA_SERVER = "data server"
    OPERATOR = "operator"
    VERIFIER = "verifier"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Reader:
    """The sender of a request that reads.

    Attributes:
        name: a member's client id, the id of a data server's or a verifier's token, `OPERATOR`, or a stranger's
            address.
    """

    kind: ReaderKind
    name: str

    @property
    def client_id(self) -> ClientId | None:
        """The member's id; None if it is no member."""
        return ClientId(self.name) if self.kind is ReaderKind.MEMBER else None

    @property
    def is_stranger(self) -> bool:
        """Whether it showed no valid token."""
        return self.kind is ReaderKind.STRANGER


def stranger_at(host: str) -> Reader:
    """Return the reader without a token at this address."""
    return Reader(ReaderKind.STRANGER, sender_of(host))


@dataclass(frozen=True, slots=True)
class Pool:
    """Maximum number of requests of one kind of reader that wait: of all together, and of one."""

    total: int
    each: int


POOLS: Mapping[ReaderKind, Pool] = {
    ReaderKind.MEMBER: Pool(total=40_000, each=16),
    ReaderKind.DATA_SERVER: Pool(total=1_024, each=64),
    ReaderKind.OPERATOR: Pool(total=64, each=64),
    ReaderKind.VERIFIER: Pool(total=1_024, each=64),
    ReaderKind.STRANGER: Pool(total=2_000, each=64),
}
"""A member waits for the document and for results, a data server for the document; the rest is for connections that
broke unnoticed, and for data servers that share a token."""


class WaitingPlaces:
    """Places for requests that wait, in a pool for each kind of reader."""

    def __init__(self) -> None:
        self._taken: Counter[Reader] = Counter()
        self._counts: Counter[ReaderKind] = Counter()

    @property
    def count(self) -> int:
        """Number of places that are taken."""
        return self._counts.total()

    def count_of(self, kind: ReaderKind) -> int:
        """Return the number of places that this kind of reader has taken."""
        return self._counts[kind]

    def take(self, reader: Reader, pool: Pool) -> bool:
        """Take a place of a reader's pool; return whether there was one."""
        if self._counts[reader.kind] >= pool.total or self._taken[reader] >= pool.each:
            return False
        self._counts[reader.kind] += 1
        self._taken[reader] += 1
        return True

    def give_back(self, reader: Reader) -> None:
        """Give back a place that a reader has taken."""
        self._counts[reader.kind] -= 1
        self._taken[reader] -= 1
        if not self._taken[reader]:
            del self._taken[reader]


class LongPolls(WaitingPlaces):
    """Counts the waiting requests, and bounds them."""

    def place(self, reader: Reader, wait_s: float) -> "PollPlace":
        """Hold a place for a request that waits for up to `wait_s`; one that does not wait needs none.

        Raises:
            Refused: `overloaded`, when the context is entered; a stranger is answered late.
        """
        return PollPlace(self, reader, wait_s)


class PollPlace:
    """The place of one request among those that wait, while the context is open.

    A class, because thousands of them are open at a time, and a generator in its place takes a kilobyte.
    """

    __slots__ = ("_polls", "_reader", "_wait_s")

    def __init__(self, polls: LongPolls, reader: Reader, wait_s: float) -> None:
        self._polls = polls
        self._reader = reader
        self._wait_s = wait_s

    async def __aenter__(self) -> None:
        if self._wait_s <= 0 or self._polls.take(self._reader, POOLS[self._reader.kind]):
            return
        message = f"too many requests of {self._reader.kind.value}s are waiting; try again in a moment"
        if self._reader.is_stranger:
            await asyncio.sleep(min(self._wait_s, MAX_HOLD_S) + MAX_MORE_HOLD_S * system_jitter())
            raise Refused(Refusal.OVERLOADED, message, retry_after_s=RETRY_AFTER_S)
        raise Refused(Refusal.OVERLOADED, message)

    async def __aexit__(self, *_: object) -> None:
        if self._wait_s > 0:
            self._polls.give_back(self._reader)
