"""A service of this machine that nobody outside may reach, and what arrives at it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

BANNER = "SECRET-SERVICE-7.3"


@dataclass(slots=True)
class Spy:
    """The service's port, the number of its connections, and the first bytes of each that sent some.

    Attributes:
        connected: set with the first connection.
    """

    port: int
    connected: asyncio.Event
    connections: int = 0
    heads: list[str] = field(default_factory=list)


@asynccontextmanager
async def spying() -> AsyncIterator[Spy]:
    """Yield a service on loopback, which answers every request with its banner."""
    seen = Spy(0, asyncio.Event())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        seen.connected.set()
        head = await reader.read(65536)
        if head:
            seen.heads.append(head.decode("latin-1"))
        writer.write(f"HTTP/1.1 418 {BANNER}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
