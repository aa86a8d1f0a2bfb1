"""The TCP data server: serves one `DataProvider` to the clients that its gate admits (`frames.py` has the protocol).

The requests of a connection are answered in order, and the next one is read only after the last answer was sent, so
that a connection holds one answer in memory. `limits.py` bounds everything that a client can delay.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np

from data_providers.protocol import DataProvider, DatasetSpec, Rejected, SourceUnavailable
from data_providers.tcp.accepting import accept_for_ever, listen
from data_providers.tcp.answer_memory import AnswerMemory
from data_providers.tcp.connections import DataConnections, ServerConnection
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
from data_providers.tcp.gate import Gate
from data_providers.tcp.limits import DEFAULT_LIMITS, ServerLimits
from data_providers.tcp.sending import SEND_PIECE_BYTES, PacedWriter, TooSlow
from runtime.broadcast import Broadcast
from runtime.by_address import sender_of
from runtime.rare_log import RareLog
from state.errors import DataError, InternalError, InvalidInput
from state.intervals import DataIds
from state.wire import ClientId, parse_document

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class ConnectionShed:
    """The server closed a connection for the sake of others.

    Attributes:
        reason: `displaced` (a stranger or an idle connection gave way), `silent` (no `HELLO` in time) or `slow` (an
            answer was received too slowly).
    """

    reason: str


DataServerEvent: TypeAlias = RequestEnded | ConnectionShed


class DataServer:
    """Serves a provider's samples, all of the `spec`'s length, on a socket. `aclose` does not close the provider."""

    def __init__(
        self, provider: DataProvider, spec: DatasetSpec, gate: Gate, limits: ServerLimits = DEFAULT_LIMITS
    ) -> None:
        self._provider = provider
        self._spec = spec
        self._gate = gate
        self._limits = limits
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[NoReturn]] = []
        self.connections = DataConnections(limits, gate.is_in_rounds)
        self.memory = AnswerMemory(limits.max_answer_bytes, limits.answer_wait_s, self._abort_slow)
        self._room = Broadcast()
        self._closing = False
        self._watcher: Callable[[DataServerEvent], None] = lambda _: None
        self._displaced = RareLog(_log, "the data server is full; connections give way to others")
        self._turned_away = RareLog(_log, "client turned away")

    def watch(self, watcher: Callable[[DataServerEvent], None]) -> None:
        """Call `watcher` at every event. It must return at once."""
        self._watcher = watcher

    async def start(self, tasks: asyncio.TaskGroup, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if `port` is 0; `OSError` if that is impossible.

        Args:
            tasks: accept connections until `aclose`.
        """
        self._listeners = await listen(host, port)
        for listener in self._listeners:
            self._accepting.append(tasks.create_task(accept_for_ever(listener, self._serve, self._until_room)))
        bound: int = self._listeners[0].getsockname()[1]
        _log.info("data server listens", extra={"host": host, "port": bound, "fingerprint": self._provider.fingerprint})
        return bound

    async def aclose(self) -> None:
        """Accept no more connections, finish the answers under way within the bound, and close. May be repeated."""
        if not self._accepting:
            return
        self._closing = True
        for task in self._accepting:
            task.cancel()
        await asyncio.wait(self._accepting)
        for listener in self._listeners:
            listener.close()
        for connection in self.connections:
            if not connection.busy:
                connection.writer.abort()
        try:
            async with asyncio.timeout(self._limits.shutdown_timeout_s):
                await self._all_ended()
        except TimeoutError:
            for connection in self.connections:
                connection.writer.abort()
                connection.task.cancel()
            await self._all_ended()

    async def _all_ended(self) -> None:
        while self.connections:
            await self._room.wait()

    async def _until_room(self, address: str) -> None:
        """Return once a stranger from this address may be taken, at the latest when the oldest one may be displaced."""
        loop = asyncio.get_running_loop()
        while (wait_s := self.connections.wait_s(address, loop.time())) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._room.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise InternalError("a connection is served outside a task")
        loop, address = asyncio.get_running_loop(), sender_of(str(writer.get_extra_info("peername", ("",))[0]))
        connection = ServerConnection(reader, PacedWriter(writer, self._limits), task, address, loop.time())
        self._displace(self.connections.enter(connection))
        try:
            await self._converse(connection)
        except TooSlow as error:
            _log.info("client reads too slowly", extra={"client_id": connection.client_id, "received": str(error)})
            self._watcher(ConnectionShed("slow"))
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            _log.debug("data connection ended", extra={"error": type(error).__name__})
        except Exception:  # a bug here or in a provider: only this client's connection breaks
            _log.exception("data connection failed")
        finally:
            connection.writer.abort()  # whatever was sent is with the system; the rest nobody waits for
            self.connections.leave(connection)
            self._room.notify()

    async def _converse(self, connection: ServerConnection) -> None:
        client_id = await self._shake_hands(connection)
        if client_id is None:
            return
        while not self._closing:
            try:
                header, payload = await self._read_frame(connection, FrameKind.GET, self._limits.idle_timeout_s)
                data_ids = parse_get(payload)
            except InvalidInput as error:
                connection.writer.say(_error_frame(CONNECTION_REQUEST, Rejected(error.message)))
                return
            await self._answer(connection, client_id, header.request, data_ids)

    async def _answer(self, connection: ServerConnection, client_id: ClientId, request: int, data_ids: DataIds) -> None:
        """Send the samples, if the client may have them, or else the reason why not."""
        started_s, size_bytes = time.perf_counter(), data_ids.count * self._spec.sequence_bytes
        try:
            if size_bytes > MAX_SAMPLES_BYTES:
                raise Rejected(f"data indices {data_ids} are {size_bytes} bytes; at most {MAX_SAMPLES_BYTES} a request")
            await self._gate.allow(client_id, data_ids)
            async with self.memory.hold(client_id, size_bytes + SEND_PIECE_BYTES):
                batch = await self._provider.get_samples(data_ids)
                tokens = batch.input_ids.view(np.uint8).data
                await connection.writer.send(frame_header(FrameKind.SAMPLES, request, len(tokens)))
                await connection.writer.send(tokens)
        except DataError as error:
            facts = {"client_id": client_id, "data_ids": str(data_ids), "kind": error.kind, "error": error.message}
            _log.info("request failed", extra=facts)
            await connection.writer.send(_error_frame(request, error))
            self._watcher(RequestEnded(error.kind, duration_s=time.perf_counter() - started_s))
        else:
            connection.answered_s = asyncio.get_running_loop().time()
            self._watcher(RequestEnded(None, data_ids.count, size_bytes, time.perf_counter() - started_s))

    async def _shake_hands(self, connection: ServerConnection) -> ClientId | None:
        """Return the admitted client; None when it was turned away."""
        try:
            if self._closing:
                raise SourceUnavailable("the data server is closing")
            _, payload = await self._read_frame(connection, FrameKind.HELLO, self._limits.handshake_timeout_s)
            hello = parse_document(Hello, payload)
            client_id = await self._gate.admit(hello.run_id, hello.ticket)
            self._displace(self.connections.admit(connection, client_id))
            self._room.notify()
        except InvalidInput as error:
            connection.writer.say(_error_frame(CONNECTION_REQUEST, Rejected(error.message)))
            return None
        except DataError as error:
            self._turned_away.note(f"{connection.address}: {error}")
            self._watcher(RequestEnded(error.kind))
            connection.writer.say(_error_frame(CONNECTION_REQUEST, error))
            return None
        except TimeoutError:
            self._watcher(ConnectionShed("silent"))
            raise
        provider = self._provider
        welcome = welcome_of(self._spec, provider.fingerprint, provider.sequence_count)
        await connection.writer.send(json_frame(FrameKind.WELCOME, CONNECTION_REQUEST, welcome))
        return client_id

    async def _read_frame(
        self, connection: ServerConnection, expected: FrameKind, timeout_s: float
    ) -> tuple[FrameHeader, bytes]:
        connection.busy = False
        async with asyncio.timeout(timeout_s):
            header = parse_header(await connection.reader.readexactly(HEADER_BYTES))
            if header.kind is not expected:
                raise InvalidInput(f"a {header.kind.name} frame where {expected.name} is expected")
            payload = await connection.reader.readexactly(header.length)
        connection.busy = True
        return header, payload

    def _displace(self, connection: ServerConnection | None) -> None:
        """Close a connection that gave way to another."""
        if connection is not None:
            full = SourceUnavailable("the data server is full; the connection gave way to another")
            connection.writer.say(_error_frame(CONNECTION_REQUEST, full))
            connection.writer.abort()
            if connection.busy:
                connection.task.cancel()  # it may wait for what its client will not receive
            self._displaced.note(f"room for another from {connection.address}")
            self._watcher(ConnectionShed("displaced"))

    def _abort_slow(self) -> None:
        """End the answers that hold memory for too long while other requests wait for it."""
        for connection in self.connections:
            if connection.writer.is_slow_when_full():
                _log.info("client reads too slowly while others wait", extra={"client_id": connection.client_id})
                connection.writer.abort()
                self._watcher(ConnectionShed("slow"))


def _error_frame(request: int, error: DataError) -> bytes:
    return json_frame(FrameKind.ERROR, request, failure_of(error))
