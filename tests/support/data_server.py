"""A TCP data server on a real socket, its clients, and a gate that lets half of everything through."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from data_providers.protocol import DataProvider, DatasetSpec, Rejected
from data_providers.tcp.client import TcpDataProvider
from data_providers.tcp.client_connection import DataServerAddress
from data_providers.tcp.gate import ANYONE, Gate
from data_providers.tcp.limits import ServerLimits
from data_providers.tcp.server import DataServer
from state.intervals import DataIds
from state.wire import ClientId
from tests.support.data_files import SPEC
from tests.support.open_gate import OpenGate

HOST = "127.0.0.1"


class HalfGate:
    """Admits the ticket "good", and allows data indices below 50."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        if ticket != "good":
            raise Rejected(f"the ticket {ticket} is bad")
        return ANYONE

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        if data_ids.end >= 50:
            raise Rejected("not yours")

    def is_in_rounds(self, client_id: ClientId) -> bool:
        return True


@asynccontextmanager
async def serving(
    source: DataProvider,
    gate: Gate | None = None,
    limits: ServerLimits | None = None,
    spec: DatasetSpec = SPEC,
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
