"""A relay in front of a database that loses statements, or their answers, as a failing network or server does."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.servers.postgres_server import PostgresServer

PIECE_BYTES = 64 * 1024
APPENDS = b"INSERT INTO epochal_records"


@dataclass
class DatabaseRelay:
    """Passes bytes on between clients and a database.

    Attributes:
        port: of the relay.
        lost_answers: number of next statements that append whose connection breaks once the database has answered.
        held: number of next statements that append which never arrive, although their connection stays.
        unanswered: number of next statements that append whose answer never comes, although their connection stays.
        watched: number of next statements that append whose answer is told of (`arrived`) as it is passed on.
        delayed: number of next statements that append whose connection breaks at once, and which arrive nevertheless
            when `arrive` is set.
        arrive: lets delayed statements arrive.
        arrived: set once a statement is held, or the database has answered one whose answer is lost or watched.
        is_cut: whether connections break, and new ones are not served.
        flows: while it is not set, nothing is passed on, and all connections stay.
    """

    port: int = 0
    lost_answers: int = 0
    held: int = 0
    unanswered: int = 0
    watched: int = 0
    delayed: int = 0
    arrive: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    is_cut: bool = False
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    def url(self, server: PostgresServer, database: str) -> str:
        """Return a database's URL by way of the relay."""
        return server.url(database).replace(f":{server.port}/", f":{self.port}/")

    def before(self, url: str) -> str:
        """Return the URL of a database on this machine by way of the relay."""
        return re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{self.port}", url)

    def __post_init__(self) -> None:
        self.flows.set()

    def cut(self) -> None:
        """Break every connection, and serve no more."""
        self.is_cut = True
        for writer in self.connections:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """Serve one connection."""
        if self.is_cut:
            writer.transport.abort()
            return
        self.connections.add(writer)
        answers, server = await asyncio.open_connection("127.0.0.1", port)
        is_losing = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                on = tasks.create_task(self._pass_on(reader, writer, server, is_losing))
                back = tasks.create_task(self._pass_back(answers, writer, is_losing))
                await asyncio.wait({on, back}, return_when=asyncio.FIRST_COMPLETED)
                on.cancel()
                back.cancel()
        finally:
            self.connections.discard(writer)
            writer.transport.abort()
            server.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
        is_losing: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self.flows.wait()
                if APPENDS in piece and self.delayed:
                    self.delayed -= 1
                    writer.transport.abort()
                    await self.arrive.wait()
                    is_losing.set()
                    server.write(piece)
                    await self.arrived.wait()
                    return
                if APPENDS in piece and self.held:
                    self.held -= 1
                    self.arrived.set()
                    await asyncio.Event().wait()
                if APPENDS in piece and (self.lost_answers or self.unanswered or self.watched):
                    self.lost_answers = max(0, self.lost_answers - 1)
                    is_losing.set()
                server.write(piece)

    async def _pass_back(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, is_losing: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await answers.read(PIECE_BYTES):
                await self.flows.wait()
                if is_losing.is_set():
                    self.arrived.set()
                    if self.watched:
                        self.watched -= 1
                        is_losing.clear()
                        writer.write(piece)
                        continue
                    if self.unanswered:
                        self.unanswered -= 1
                        await asyncio.Event().wait()
                    return
                writer.write(piece)


@asynccontextmanager
async def database_relay(server: PostgresServer) -> AsyncIterator[DatabaseRelay]:
    """Relay connections to a server until the context is left."""
    relay = DatabaseRelay()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await relay.serve(reader, writer, server.port)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    relay.port = listening.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        listening.close()
        relay.cut()
