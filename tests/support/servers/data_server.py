"""A TCP data server on a real socket, its clients, and a gate that lets half of everything through."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from epochal.data_providers.protocol import DataProvider, Rejected
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.frames import HEADER_BYTES, FrameKind, Hello, get_frame, json_frame, parse_header
from epochal.data_providers.tcp.payloads import Shape
from epochal.data_providers.tcp.server import DataServer, Gate
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId
from tests.support.data.data_files import SPEC
from tests.support.data.open_gate import OpenGate

HOST = "127.0.0.1"


class HalfGate(OpenGate):
    """Admits the ticket "good", and allows data indices below 50."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        if ticket != "good":
            raise Rejected(f"the ticket {ticket} is bad")
        return await super().admit(run_id, ticket)

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        if data_ids.end >= 50:
            raise Rejected("not yours")


class NamingGate(OpenGate):
    """Admits everyone as the client that the ticket names, and allows everything."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        return ClientId(ticket)


@asynccontextmanager
async def serving(
    source: DataProvider,
    gate: Gate | None = None,
    limits: ServerLimits | None = None,
    spec: Shape = SPEC,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[DataServer, DataServerAddress]]:
    server = DataServer(source, spec, gate or OpenGate(), limits or ServerLimits(shutdown_timeout_s=0.2), tls)
    async with asyncio.TaskGroup() as tasks:
        port = await server.start(tasks, HOST, port)
        try:
            yield server, DataServerAddress(HOST, port, "a-run", tls is not None)
        finally:
            await server.aclose()


async def open_client(address: DataServerAddress, ticket: str = "good") -> TcpDataProvider:
    return await TcpDataProvider.open(address, lambda: ticket)


async def ask_without_reading(address: DataServerAddress, ticket: str, *wanted: DataIds) -> socket.socket:
    """Return a connection on which answers were asked for, numbered from 1, and of which nothing is read by itself."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await loop.sock_connect(connection, (HOST, address.port))
    await loop.sock_sendall(connection, json_frame(FrameKind.HELLO, 0, Hello("a-run", ticket)))
    header = parse_header(await loop.sock_recv(connection, HEADER_BYTES))
    await loop.sock_recv(connection, header.length)
    await loop.sock_sendall(connection, b"".join(get_frame(number, ids) for number, ids in enumerate(wanted, 1)))
    return connection
