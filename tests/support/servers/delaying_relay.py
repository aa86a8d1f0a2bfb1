"""A relay that delays bytes in both directions, as a long way does: `python -m tests.support.servers.delaying_relay
PORT S`.

Each direction holds bytes back for half of the round trip; a connection's first bytes wait for one more, which opening
it takes on a long way. Memory is bounded: a direction that holds `MAX_HELD_BYTES` reads no further.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.servers.raw_http import raw_server

PIECE_BYTES = 256 * 1024
MAX_HELD_BYTES = 64 * 1024**2
"""Of one direction of one connection: 640 MB/s at 100 ms."""


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, opening_s: float
) -> None:
    """Pass bytes on, each piece `delay_s` after it came, until the end of the stream."""
    loop = asyncio.get_running_loop()
    held: deque[tuple[float, bytes]] = deque()
    changed = asyncio.Event()
    open_s = loop.time() + opening_s
    held_bytes, is_over = 0, False

    async def receive() -> None:
        nonlocal held_bytes, is_over
        with suppress(ConnectionError):
            while piece := await reader.read(PIECE_BYTES):
                held.append((max(loop.time(), open_s) + delay_s, piece))
                held_bytes += len(piece)
                changed.set()
                while held_bytes > MAX_HELD_BYTES:
                    changed.clear()
                    await changed.wait()
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
                changed.set()
        writer.close()

    await asyncio.gather(receive(), send())


@asynccontextmanager
async def delaying_relay(port: int, round_trip_s: float) -> AsyncIterator[int]:
    """The port of a relay to a port of this machine."""
    half_s = round_trip_s / 2

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection("127.0.0.1", port, limit=PIECE_BYTES)
        try:
            await asyncio.gather(
                _pass_on(reader, server, half_s, round_trip_s), _pass_on(answers, writer, half_s, round_trip_s)
            )
        finally:
            for opened in (writer, server):
                opened.transport.abort()
                with suppress(ConnectionError):
                    await opened.wait_closed()

    async with raw_server(relay, limit_bytes=PIECE_BYTES) as own_port:
        yield own_port


async def _main() -> None:
    async with delaying_relay(int(sys.argv[1]), float(sys.argv[2])) as port:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
