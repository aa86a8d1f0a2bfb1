"""A relay that delays bytes in both directions, as a long way does: `python -m tests.support.servers.delaying_relay
PORT S`.

Each direction holds bytes back for half of the round trip; a connection's first bytes wait for one more, which opening
it takes on a long way. Memory is bounded: a direction that holds `MAX_HELD_BYTES` reads no further.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from tests.support.servers.raw_http import raw_server

PIECE_BYTES = 256 * 1024
MAX_HELD_BYTES = 64 * 1024**2
"""Maximum size of what a direction of a connection holds back: 640 MB/s at 100 ms."""


class HeldPieces:
    """What one direction of a connection holds back: pieces, each with the time at which it is passed on."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._size_bytes = 0
        self._is_over = False

    def add(self, due_s: float, piece: bytes) -> None:
        self._pieces.append((due_s, piece))
        self._size_bytes += len(piece)
        self._changed.set()

    async def room(self) -> bool:
        """Wait until there is room for more; return whether there was none."""
        was_full = self._size_bytes > MAX_HELD_BYTES
        while self._size_bytes > MAX_HELD_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        return was_full

    def end(self) -> None:
        self._is_over = True
        self._changed.set()

    async def send(self, writer: asyncio.StreamWriter) -> None:
        """Pass the pieces on until the end, and close the connection."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while self._pieces or not self._is_over:
                if not self._pieces:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                due_s, piece = self._pieces.popleft()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                writer.write(piece)
                await writer.drain()
                self._size_bytes -= len(piece)
                self._has_room.set()
        with suppress(ConnectionError, RuntimeError, OSError):
            writer.close()


Passing = Callable[[asyncio.StreamReader, HeldPieces], Awaitable[None]]
"""Reads pieces until the end of the stream, and adds each with its time."""


@asynccontextmanager
async def relay_to(port: int, limit_bytes: int, up: Passing, down: Passing) -> AsyncIterator[int]:
    """The port of a relay to a port of this machine, with what it does with bytes on their way there and back."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: Passing) -> None:
        held = HeldPieces()

        async def receive() -> None:
            with suppress(ConnectionError):
                await passing(reader, held)
            held.end()

        await asyncio.gather(receive(), held.send(writer))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection("127.0.0.1", port, limit=limit_bytes)
        try:
            await asyncio.gather(pass_on(reader, server, up), pass_on(answers, writer, down))
        finally:
            for opened in (writer, server):
                opened.transport.abort()
                with suppress(ConnectionError):
                    await opened.wait_closed()

    async with raw_server(relay, limit_bytes=limit_bytes) as own_port:
        yield own_port


@asynccontextmanager
async def delaying_relay(port: int, round_trip_s: float) -> AsyncIterator[int]:
    """The port of a relay to a port of this machine."""

    async def delayed(reader: asyncio.StreamReader, held: HeldPieces) -> None:
        loop = asyncio.get_running_loop()
        open_s = loop.time() + round_trip_s
        while piece := await reader.read(PIECE_BYTES):
            held.add(max(loop.time(), open_s) + round_trip_s / 2, piece)
            await held.room()

    async with relay_to(port, PIECE_BYTES, delayed, delayed) as own_port:
        yield own_port


async def _main() -> None:
    async with delaying_relay(int(sys.argv[1]), float(sys.argv[2])) as port:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
