"""A bad line: forwards TCP connections with a delay, and, as its control file says, slowly, not at all, or with resets.

`python -m tests.chaos.bad_line CONTROL FROM_PORT=HOST:PORT …` listens on loopback. CONTROL holds JSON: `delay_s` and
`jitter_s` of each piece in each direction, `bytes_per_s` (null: no limit), `down` (nothing passes, as on a cut cable),
and `resets` (a number that, when it grows, ends every connection).
"""

import asyncio
import contextlib
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 16 * 1024
CONTROL_PERIOD_S = 0.05
MAX_QUEUED_PIECES = 64


@dataclass(frozen=True, slots=True)
class LineState:
    """The condition of the line."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    down: bool = False
    resets: int = 0

    def write(self, path: Path) -> None:
        """Write the control file, so that no reader sees half of it."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({name: getattr(self, name) for name in self.__slots__}))
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> "LineState":
        """Return the state that the control file holds."""
        return cls(**json.loads(path.read_text()))


class BadLine:
    """Forwards connections over one line."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._state = LineState.read(control)
        self._is_up = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    async def obey(self) -> None:
        """Follow the control file until cancelled."""
        while True:
            state = LineState.read(self._control)
            if state.resets > self._state.resets:
                for writer in list(self._open):
                    writer.transport.abort()
            self._state = state
            if state.down:
                self._is_up.clear()
            else:
                self._is_up.set()
            await asyncio.sleep(CONTROL_PERIOD_S)

    async def forward(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], target: str) -> None:
        """Forward one connection to `HOST:PORT` until one side ends it."""
        reader, writer = client
        host, _, port = target.rpartition(":")
        await self._is_up.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, far_writer))
                both.create_task(self._carry(far_reader, writer))
        finally:
            self._open -= {writer, far_writer}
            for side in (writer, far_writer):
                side.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_QUEUED_PIECES)
        loop = asyncio.get_running_loop()

        async def receive() -> None:
            with contextlib.suppress(OSError):
                while piece := await source.read(PIECE_BYTES):
                    delay_s = max(0.0, self._state.delay_s + random.uniform(-1, 1) * self._state.jitter_s)
                    await pieces.put((loop.time() + delay_s, piece))
            await pieces.put((loop.time() + self._state.delay_s, b""))

        async def send() -> None:
            while True:
                due_s, piece = await pieces.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                await self._is_up.wait()
                if self._state.bytes_per_s is not None:
                    await asyncio.sleep(len(piece) / self._state.bytes_per_s)
                with contextlib.suppress(OSError):
                    if not piece:
                        sink.close()
                        return
                    sink.write(piece)
                    await sink.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(receive())
            tasks.create_task(send())


async def serve(control: Path, routes: list[str]) -> None:
    """Forward each `PORT=HOST:PORT` until cancelled."""
    line = BadLine(control)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(line.obey())
        for route in routes:
            port, _, target = route.partition("=")

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str = target) -> None:
                with contextlib.suppress(OSError, ExceptionGroup):
                    await line.forward((reader, writer), target)

            await asyncio.start_server(accept, "127.0.0.1", int(port))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
