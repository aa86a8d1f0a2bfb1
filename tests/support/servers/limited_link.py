"""Relays between clients and a coordinator that pass on so many bytes a second, so much later, and count them.

Each client has a relay of its own, with its link; all of them share the coordinator's link. A connection passes one
piece at a time, in turn with the others on its links, so that they share those fairly.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.servers.delaying_relay import HeldPieces, Passing, relay_to

PIECE_S = 0.02
"""A piece is about what a link passes in this time: so long may a connection wait for another one's piece."""
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 2048, 65_536
WAITED_S = 0.001
"""Time from which a piece was waited for: others lay there when they were asked for."""


@dataclass
class Bucket:
    """One direction of a link.

    Attributes:
        bytes_per_s: its rate, which may be changed.
        passed_bytes: the bytes that it has passed on.
    """

    bytes_per_s: float = 1e9
    passed_bytes: int = 0
    _free_at_s: float = 0.0

    @property
    def piece_bytes(self) -> int:
        """Maximum size of a piece."""
        return max(LEAST_PIECE_BYTES, min(MOST_PIECE_BYTES, int(self.bytes_per_s * PIECE_S)))

    def taken(self, size_bytes: int, now_s: float) -> float:
        """Return when so many bytes have passed, after all those that came before."""
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self.bytes_per_s
        self.passed_bytes += size_bytes
        return self._free_at_s


@dataclass
class LimitedLink:
    """A client's link.

    Attributes:
        url: of its relay.
        up, down: its directions.
        round_trip_s: time that a message and its answer take, which may be changed.
    """

    url: str = ""
    up: Bucket = field(default_factory=Bucket)
    down: Bucket = field(default_factory=Bucket)
    round_trip_s: float = 0.0


@dataclass
class ServerBuckets:
    """The coordinator's link, seen from it."""

    to_it: Bucket = field(default_factory=Bucket)
    from_it: Bucket = field(default_factory=Bucket)


@asynccontextmanager
async def limited_link(port: int, server: ServerBuckets) -> AsyncIterator[LimitedLink]:
    """A client's link to a port of this machine."""
    link = LimitedLink()

    def limited(*buckets: Bucket) -> Passing:
        async def receive(reader: asyncio.StreamReader, held: HeldPieces) -> None:
            loop = asyncio.get_running_loop()
            passed_s = asked_s = loop.time()
            while piece := await reader.read(min(bucket.piece_bytes for bucket in buckets)):
                came_s = loop.time()
                if came_s - asked_s < WAITED_S:
                    came_s = passed_s  # it lay there already: that this task woke late is not the link's time
                passed_s = max(bucket.taken(len(piece), came_s) for bucket in buckets)
                held.add(passed_s + link.round_trip_s / 2, piece)
                await asyncio.sleep(max(0.0, passed_s - loop.time()))
                if await held.room():
                    passed_s = loop.time()
                asked_s = loop.time()

        return receive

    up, down = limited(link.up, server.to_it), limited(link.down, server.from_it)
    async with relay_to(port, MOST_PIECE_BYTES, up, down) as own_port:
        link.url = f"http://127.0.0.1:{own_port}"
        yield link
