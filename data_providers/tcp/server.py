"""The TCP data server: serves one `DataProvider` to the clients that its gate admits (`frames.py` has the protocol).

The requests of a connection are answered in order, and the next one is read only after the last answer was sent, so
that a connection holds one answer in memory. `ServerLimits` bounds everything that a client can delay.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_providers.protocol import DataProvider, DatasetSpec, Rejected, SourceUnavailable
from data_providers.tcp.frames import (
    CONNECTION_REQUEST,
    HEADER_BYTES,
    MAX_SAMPLES_BYTES,
    FrameHeader,
    FrameKind,
    Hello,
    failure_of,
    frame_header,
    json_frame,
    parse_get,
    parse_header,
    welcome_of,
)
from data_providers.tcp.gate import ANYONE, Gate
from state.errors import DataError, InternalError, InvalidInput
from state.intervals import DataIds
from state.wire import ClientId, parse_document

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a data server.

    Attributes:
        max_connections: further connections get `unavailable`, may retry, and are closed.
        max_connections_per_client: the same for the connections of one client. A client needs one, and one for each
            process of its mesh (up to 64); the rest is for connections that broke without the server's notice. Not
            applied by an open gate, which does not distinguish clients.
        handshake_timeout_s: from the connection to a complete `HELLO`.
        idle_timeout_s: a connection without a request for longer is closed; the client reconnects when it needs to.
        send_timeout_s: for a client to receive one answer.
        shutdown_timeout_s: for answers under way when the server closes.
    """

    max_connections: int = 1024
    max_connections_per_client: int = 160
    handshake_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    send_timeout_s: float = 60.0
    shutdown_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request for samples was answered, or a client turned away.

    Attributes:
        failure: the kind of the error that was sent; None if samples were sent.
        sample_count: number of samples sent.
        size_bytes: their size.
        duration_s: from the request to its answer's last byte; None for a client that was turned away.
    """

    failure: str | None = None
    sample_count: int = 0
    size_bytes: int = 0
    duration_s: float | None = None


@dataclass(eq=False, slots=True)
class _ServerConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    task: asyncio.Task[None]
    busy: bool = False
    """A request is being answered; otherwise the connection waits for its client and may be closed at any time."""
    client_id: ClientId | None = None
    """The client, once it was admitted."""


class DataServer:
    """Serves a provider's samples, all of the `spec`'s length, on a socket. `aclose` does not close the provider."""

    def __init__(
        self, provider: DataProvider, spec: DatasetSpec, gate: Gate, limits: ServerLimits = ServerLimits()
    ) -> None:
        self._provider = provider
        self._spec = spec
        self._gate = gate
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._connections: set[_ServerConnection] = set()
        self._connection_ended = asyncio.Event()
        self._closing = False
        self._watcher: Callable[[RequestEnded], None] = lambda _: None

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def watch(self, watcher: Callable[[RequestEnded], None]) -> None:
        """Call `watcher` whenever a request ends. It must return at once."""
        self._watcher = watcher

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if `port` is 0; `OSError` if that is impossible."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        _log.info("data server listens", extra={"host": host, "port": bound, "fingerprint": self._provider.fingerprint})
        return bound

    async def aclose(self) -> None:
        """Accept no more connections, finish the answers under way within the bound, and close. May be repeated."""
        if self._server is None:
            return
        self._closing = True
        self._server.close()
        for connection in self._connections:
            if not connection.busy:
                connection.writer.close()
        try:
            async with asyncio.timeout(self._limits.shutdown_timeout_s):
                await self._all_ended()
        except TimeoutError:
            for connection in self._connections:
                connection.writer.transport.abort()
                connection.task.cancel()
            await self._all_ended()
        await self._server.wait_closed()

    async def _all_ended(self) -> None:
        while self._connections:
            self._connection_ended.clear()
            await self._connection_ended.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise InternalError("a connection is served outside a task")
        connection = _ServerConnection(reader, writer, task)
        is_full = len(self._connections) >= self._limits.max_connections
        self._connections.add(connection)
        try:
            if is_full or self._closing:
                await self._send_error(connection, CONNECTION_REQUEST, SourceUnavailable("the data server is full"))
                return
            await self._converse(connection)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            _log.debug("data connection ended", extra={"error": type(error).__name__})
        except Exception:  # a bug here or in a provider: only this client's connection breaks
            _log.exception("data connection failed")
        finally:
            writer.close()
            self._connections.discard(connection)
            self._connection_ended.set()

    async def _converse(self, connection: _ServerConnection) -> None:
        client_id = await self._shake_hands(connection)
        if client_id is None:
            return
        while not self._closing:
            try:
                header, payload = await self._read_frame(connection, FrameKind.GET, self._limits.idle_timeout_s)
                data_ids = parse_get(payload)
            except InvalidInput as error:
                await self._send_error(connection, CONNECTION_REQUEST, Rejected(error.message))
                return
            started_s = time.perf_counter()
            try:
                tokens = await self._samples(client_id, data_ids)
            except DataError as error:
                facts = {"client_id": client_id, "data_ids": str(data_ids), "kind": error.kind, "error": error.message}
                _log.info("request failed", extra=facts)
                await self._send_error(connection, header.request, error)
                self._watcher(RequestEnded(error.kind, duration_s=time.perf_counter() - started_s))
            else:
                connection.writer.write(frame_header(FrameKind.SAMPLES, header.request, len(tokens)))
                await self._send(connection, tokens)
                self._watcher(RequestEnded(None, data_ids.count, len(tokens), time.perf_counter() - started_s))

    async def _samples(self, client_id: ClientId, data_ids: DataIds) -> memoryview:
        """Return the bytes of the samples, if the client may have them."""
        size_bytes = data_ids.count * self._spec.sequence_bytes
        if size_bytes > MAX_SAMPLES_BYTES:
            raise Rejected(f"data indices {data_ids} are {size_bytes} bytes; at most {MAX_SAMPLES_BYTES} a request")
        await self._gate.allow(client_id, data_ids)
        batch = await self._provider.get_samples(data_ids)
        return batch.input_ids.view(np.uint8).data

    async def _shake_hands(self, connection: _ServerConnection) -> ClientId | None:
        """Return the admitted client; None when it was turned away."""
        try:
            _, payload = await self._read_frame(connection, FrameKind.HELLO, self._limits.handshake_timeout_s)
            hello = parse_document(Hello, payload)
            client_id = await self._gate.admit(hello.run_id, hello.ticket)
            self._take_place(connection, client_id)
        except InvalidInput as error:
            await self._send_error(connection, CONNECTION_REQUEST, Rejected(error.message))
            return None
        except DataError as error:
            _log.info("client turned away", extra={"error": str(error)})
            self._watcher(RequestEnded(error.kind))
            await self._send_error(connection, CONNECTION_REQUEST, error)
            return None
        provider = self._provider
        welcome = welcome_of(self._spec, provider.fingerprint, provider.sequence_count)
        await self._send(connection, json_frame(FrameKind.WELCOME, CONNECTION_REQUEST, welcome))
        return client_id

    def _take_place(self, connection: _ServerConnection, client_id: ClientId) -> None:
        """Count the connection as its client's; `SourceUnavailable` if the client has too many."""
        held_count = sum(other.client_id == client_id for other in self._connections)
        if client_id != ANYONE and held_count >= self._limits.max_connections_per_client:
            raise SourceUnavailable(f"client {client_id} already has {held_count} connections, the maximum")
        connection.client_id = client_id

    async def _read_frame(
        self, connection: _ServerConnection, expected: FrameKind, timeout_s: float
    ) -> tuple[FrameHeader, bytes]:
        connection.busy = False
        async with asyncio.timeout(timeout_s):
            header = parse_header(await connection.reader.readexactly(HEADER_BYTES))
            if header.kind is not expected:
                raise InvalidInput(f"a {header.kind.name} frame where {expected.name} is expected")
            payload = await connection.reader.readexactly(header.length)
        connection.busy = True
        return header, payload

    async def _send_error(self, connection: _ServerConnection, request: int, error: DataError) -> None:
        await self._send(connection, json_frame(FrameKind.ERROR, request, failure_of(error)))

    async def _send(self, connection: _ServerConnection, data: bytes | memoryview) -> None:
        connection.writer.write(data)
        async with asyncio.timeout(self._limits.send_timeout_s):
            await connection.writer.drain()
