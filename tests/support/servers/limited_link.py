"""Relays between clients and a coordinator that pass on so many bytes a second, so much later, and count them.

Each client has a relay of its own, with its link; all of them share the coordinator's link. A connection passes one
piece at a time, in turn with the others on its links, so that they share those fairly.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.support.servers.raw_http import raw_server

PIECE_S = 0.02
"""A piece is about what a link passes in this time: so long may a connection wait for another one's piece."""
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 2048, 65_536
WAITED_S = 0.001
"""Time from which a piece was waited for: others lay there when they were asked for."""
MAX_HELD_BYTES = 64 * 1024**2
"""Maximum size of what a direction of a connection holds back, for a receiver that is slower than its link."""


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


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, buckets: tuple[Bucket, Bucket], link: LimitedLink
) -> None:
    loop = asyncio.get_running_loop()
    held: deque[tuple[float, bytes]] = deque()
    changed, has_room = asyncio.Event(), asyncio.Event()
    held_bytes, is_over = 0, False

    async def receive() -> None:
        nonlocal held_bytes, is_over
        passed_s = asked_s = loop.time()
        with suppress(ConnectionError):
            while piece := await reader.read(min(bucket.piece_bytes for bucket in buckets)):
                came_s = loop.time()
                if came_s - asked_s < WAITED_S:
                    came_s = passed_s  # it lay there already: that this task woke late is not the link's time
                passed_s = max(bucket.taken(len(piece), came_s) for bucket in buckets)
                held.append((passed_s + link.round_trip_s / 2, piece))
                held_bytes += len(piece)
                changed.set()
                await asyncio.sleep(max(0.0, passed_s - loop.time()))
                while held_bytes > MAX_HELD_BYTES:
                    has_room.clear()
                    await has_room.wait()
                    passed_s = loop.time()
                asked_s = loop.time()
        is_over = True
        changed.set()

    async def send() -> None:
        nonlocal held_bytes
        with suppress(ConnectionError):
            while held or not is_over:
                if not held:
                    changed.clear()
                    await changed.wait()
                    continue
                due_s, piece = held.popleft()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                writer.write(piece)
                await writer.drain()
                held_bytes -= len(piece)
                has_room.set()
        with suppress(ConnectionError, RuntimeError, OSError):
            writer.close()

    await asyncio.gather(receive(), send())


@asynccontextmanager
async def limited_link(port: int, server: ServerBuckets) -> AsyncIterator[LimitedLink]:
    """A client's link to a port of this machine."""
    link = LimitedLink()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, to_server = await asyncio.open_connection("127.0.0.1", port, limit=MOST_PIECE_BYTES)
        try:
            await asyncio.gather(
                _pass_on(reader, to_server, (link.up, server.to_it), link),
                _pass_on(answers, writer, (link.down, server.from_it), link),
            )
        finally:
            for opened in (writer, to_server):
                opened.transport.abort()
                with suppress(ConnectionError):
                    await opened.wait_closed()

    async with raw_server(relay, limit_bytes=MOST_PIECE_BYTES) as own_port:
        link.url = f"http://127.0.0.1:{own_port}"
        yield link
