"""A relay in front of a coordinator that cuts uploads in the middle of their body, and answers at some byte."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

END_OF_HEAD = b"\r\n\r\n"
PIECE_BYTES = 64 * 1024
BOUND_S = 20.0


@dataclass
class CuttingRelay:
    """Passes bytes on between clients and a server.

    Attributes:
        url: of the relay.
        introduction: a request that the relay sends first on each connection, so that the server knows it; it handles
            short bodies of others when they are whole.
        cut_after: number of bytes of a PUT's body after which its connection is cut; None: never.
        until: the connection is cut once this holds, so that nothing is lost on the way.
        starts: of each PUT, the place in the blob where its body began.
        sent_bytes: number of bytes of all PUTs that were passed on.
        answer_bytes: number of bytes that are passed back to clients before nothing more is; None: all.
        is_silent: set when nothing more is.
    """

    url: str = ""
    introduction: bytes = b""
    cut_after: int | None = None
    until: Callable[[], bool] = lambda: True
    starts: list[int] = field(default_factory=list)
    sent_bytes: int = 0
    answer_bytes: int | None = None
    is_silent: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass back answers, as many bytes as may be."""
        while piece := await reader.read(PIECE_BYTES):
            if self.answer_bytes is not None:
                self.answer_bytes -= len(piece)
                if self.answer_bytes < 0:
                    self.is_silent.set()
                    await asyncio.Event().wait()
            writer.write(piece)

    async def pass_on(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """Pass on requests until the client ends the connection, or one is cut."""
        while True:
            head = await reader.readuntil(END_OF_HEAD)
            server.write(head)
            left, cut_after = int(_field(head, b"content-length") or 0), None
            if head.startswith(b"PUT"):
                cut_after = self.cut_after
                place = _field(head, b"content-range")
                self.starts.append(int(place.split()[1].partition(b"-")[0]) if place else 0)
            while left:
                if cut_after == 0:
                    await self._cut()
                    return
                piece = await reader.read(min(left, PIECE_BYTES if cut_after is None else cut_after))
                if not piece:
                    return
                server.write(piece)
                await server.drain()
                left -= len(piece)
                if head.startswith(b"PUT"):
                    self.sent_bytes += len(piece)
                if cut_after is not None:
                    cut_after -= len(piece)
            if cut_after == 0:
                await self._cut()
                return

    async def introduce(self, answers: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """Send the introduction, and drop its answer."""
        if self.introduction:
            server.write(self.introduction)
            head = await answers.readuntil(END_OF_HEAD)
            assert b" 200 " in head[:20], head
            await answers.readexactly(int(_field(head, b"content-length")))

    async def _cut(self) -> None:
        async with asyncio.timeout(BOUND_S):
            await until(self.until)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something in this process holds."""
    while not holds():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


def _field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


@asynccontextmanager
async def cutting_relay(host: str, port: int) -> AsyncIterator[CuttingRelay]:
    """Relay connections to a server until the context is left."""
    relay = CuttingRelay()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(host, port)
        await relay.introduce(answers, server)
        tasks = {
            asyncio.ensure_future(relay.pass_on(reader, server)),
            asyncio.ensure_future(relay.pass_back(answers, writer)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            server.transport.abort()
            writer.transport.abort()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        listening.close()
