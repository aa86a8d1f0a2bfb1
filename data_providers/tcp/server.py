"""The TCP data server: serves one `DataProvider` to the clients that its gate admits (`frames.py` has the protocol).

The requests of a connection are answered in order, and the next one is read only after the last answer was sent, so
that a connection holds one answer in memory, of files only the piece that is being sent. `server_limits.py` bounds
everything that a client can delay.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeAlias

import numpy as np

from epochal.data_providers.protocol import DataProvider, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.tcp.answer_memory import AnswerMemory
from epochal.data_providers.tcp.answer_pieces import GivesBytes
from epochal.data_providers.tcp.connections import DataConnections, ServerConnection
from epochal.data_providers.tcp.frames import (
    CONNECTION_REQUEST,
    HEADER_BYTES,
    MAX_SAMPLES_BYTES,
    FrameHeader,
    FrameKind,
    Get,
    Goodbye,
    Hello,
    failure_of,
    frame_header,
    json_frame,
    parse_get,
    parse_header,
    welcome_of,
)
from epochal.data_providers.tcp.gate import Gate
from epochal.data_providers.tcp.listening import accept_for_ever, listen, open_stream
from epochal.data_providers.tcp.sending import SEND_PIECE_BYTES, AnswerBroken, PacedWriter, SendBuffers, TooSlow
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS, ServerLimits
from epochal.data_providers.tcp.stream import READ_AHEAD_BYTES, ServerStream
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.connections.throttled_log import RareLog
from epochal.state.errors import DataError, InternalError, InvalidInput
from epochal.state.wire import ClientId, parse_document

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request for samples was answered, or a client turned away.

    Attributes:
        failure: the kind of the error that was sent; None if samples were sent.
        client_id: the client that asked; None for one that was turned away.
        sample_count: number of samples sent.
        size_bytes: their size.
        duration_s: from the request to its answer's last byte; None for a client that was turned away.
    """

    failure: str | None = None
    client_id: ClientId | None = None
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
        self,
        provider: DataProvider,
        spec: DatasetSpec,
        gate: Gate,
        limits: ServerLimits = DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._provider = provider
        self._files = provider if isinstance(provider, GivesBytes) else None
        self._spec = spec
        self._gate = gate
        self._limits = limits
        self._tls = tls
        self._buffers = SendBuffers()
        self._scratch = memoryview(bytearray(READ_AHEAD_BYTES))
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[NoReturn]] = []
        self.connections = DataConnections(limits, gate.is_in_rounds)
        self.memory = AnswerMemory(limits.max_answer_bytes, limits.answer_wait_s, self._abort_slow)
        self._room = Broadcast()
        self._closing = False
        self._watchers: list[Callable[[DataServerEvent], None]] = []
        self._displaced = RareLog(_log, "the data server is full; connections give way to others")
        self._turned_away = RareLog(_log, "client turned away")

    def watch(self, watcher: Callable[[DataServerEvent], None]) -> None:
        """Call `watcher`, too, at every event. It must return at once."""
        self._watchers.append(watcher)

    def _watcher(self, event: DataServerEvent) -> None:
        for watcher in self._watchers:
            watcher(event)

    async def start(self, tasks: asyncio.TaskGroup, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if `port` is 0; `OSError` if that is impossible.

        Args:
            tasks: accept connections, and serve them, until `aclose`.
            host, port: where to listen.
        """
        self._listeners = await listen(host, port)
        for listener in self._listeners:
            serve = partial(self._begin, tasks)
            self._accepting.append(tasks.create_task(accept_for_ever(listener, serve, self._until_room)))
        bound: int = self._listeners[0].getsockname()[1]
        _log.info("data server listens", extra={"host": host, "port": bound, "fingerprint": self._provider.fingerprint})
        return bound

    async def aclose(self) -> None:
        """Stop accepting, finish the answers under way within the bound, say goodbye, and close.

        Clients ask another server for the rest. May be repeated.
        """
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
                connection.leave(_goodbye())
        try:
            async with asyncio.timeout(self._limits.shutdown_timeout_s):
                await self._all_ended()
        except TimeoutError:
            for connection in self.connections:
                connection.abort()
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

    def _begin(self, tasks: asyncio.TaskGroup, accepted: socket.socket, address: str) -> None:
        """Serve an accepted connection, in a separate task."""
        tasks.create_task(self._serve(accepted, address))

    async def _serve(self, accepted: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        if task is None:
            raise InternalError("a connection is served outside a task")
        connection = ServerConnection(task, address, asyncio.get_running_loop().time())
        self._displace(self.connections.enter(connection))
        stream, is_open = ServerStream(self._scratch), False
        try:
            await open_stream(accepted, stream, self._tls, self._limits)
            is_open = True
            writer = connection.writer = PacedWriter(stream, self._limits, accepted if self._tls is None else None)
            await self._converse(connection, stream, writer)
            if self._tls is not None:
                stream.transport.close()  # what was written is sent, or given up in time
        except TooSlow as error:
            _log.info("client reads too slowly", extra={"client_id": connection.client_id, "received": str(error)})
            self._watcher(ConnectionShed("slow"))
        except AnswerBroken as error:
            _log.warning("answer broken off", extra={"client_id": connection.client_id, "error": str(error)})
            self._watcher(RequestEnded("unavailable", client_id=connection.client_id, duration_s=0.0))
        except OSError as error:  # a TimeoutError is one
            if not is_open and isinstance(error, ConnectionAbortedError):  # the TLS handshake took too long
                self._watcher(ConnectionShed("silent"))
            _log.debug("data connection ended", extra={"error": type(error).__name__})
        except Exception:  # a bug here or in a provider: only this client's connection breaks
            _log.exception("data connection failed")
        finally:
            if not is_open:
                accepted.close()
            elif not (self._tls is not None and stream.transport.is_closing()):
                stream.transport.abort()  # whatever was sent is with the system; the rest nobody waits for
            self.connections.leave(connection)
            self._room.notify()

    async def _converse(self, connection: ServerConnection, stream: ServerStream, writer: PacedWriter) -> None:
        client_id = await self._shake_hands(connection, stream, writer)
        if client_id is None:
            return
        while not self._closing:
            try:
                header, payload = await self._read_frame(connection, stream, FrameKind.GET)
                wanted = parse_get(payload)
            except InvalidInput as error:
                connection.say(_error_frame(CONNECTION_REQUEST, Rejected(error.message)))
                return
            await self._answer(connection, writer, client_id, header.request, wanted)
        connection.say(_goodbye())

    async def _answer(
        self, connection: ServerConnection, writer: PacedWriter, client_id: ClientId, request: int, wanted: Get
    ) -> None:
        """Send the samples, if the client may have them, or else the reason why not."""
        data_ids = wanted.data_ids
        started_s, size_bytes = time.perf_counter(), data_ids.count * self._spec.sequence_bytes
        try:
            if size_bytes > MAX_SAMPLES_BYTES:
                raise Rejected(f"data indices {data_ids} are {size_bytes} bytes; at most {MAX_SAMPLES_BYTES} a request")
            await self._gate.allow(client_id, data_ids, wanted.version)
            if self._files is not None:
                samples = self._files.sample_bytes(data_ids)
                header = frame_header(FrameKind.SAMPLES, request, samples.size_bytes)
                async with self.memory.hold(client_id, 2 * SEND_PIECE_BYTES):
                    with self._buffers.borrow() as buffer:
                        await writer.send_samples(header, samples, buffer)
            else:
                async with self.memory.hold(client_id, size_bytes + SEND_PIECE_BYTES):
                    batch = await self._provider.get_samples(data_ids)
                    tokens = batch.input_ids.view(np.uint8).data
                    await writer.send(frame_header(FrameKind.SAMPLES, request, len(tokens)))
                    await writer.send(tokens)
        except DataError as error:
            facts = {"client_id": client_id, "data_ids": str(data_ids), "kind": error.kind, "error": error.message}
            _log.info("request failed", extra=facts)
            await writer.send(_error_frame(request, error))
            self._watcher(RequestEnded(error.kind, client_id, duration_s=time.perf_counter() - started_s))
        else:
            connection.answered_s = asyncio.get_running_loop().time()
            took_s = time.perf_counter() - started_s
            self._watcher(RequestEnded(None, client_id, data_ids.count, size_bytes, took_s))

    async def _shake_hands(
        self, connection: ServerConnection, stream: ServerStream, writer: PacedWriter
    ) -> ClientId | None:
        """Return the admitted client; None when it was turned away."""
        try:
            if self._closing:
                raise SourceUnavailable("the data server is closing")
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                _, payload = await self._read_frame(connection, stream, FrameKind.HELLO)
            hello = parse_document(Hello, payload)
            client_id = await self._gate.admit(hello.run_id, hello.ticket)
            self._displace(self.connections.admit(connection, client_id))
            self._room.notify()
        except InvalidInput as error:
            connection.say(_error_frame(CONNECTION_REQUEST, Rejected(error.message)))
            return None
        except DataError as error:
            self._turned_away.note(f"{connection.address}: {error}")
            self._watcher(RequestEnded(error.kind))
            connection.say(_error_frame(CONNECTION_REQUEST, error))
            return None
        except TimeoutError:
            self._watcher(ConnectionShed("silent"))
            raise
        provider = self._provider
        welcome = welcome_of(self._spec, provider.fingerprint, provider.sequence_count)
        await writer.send(json_frame(FrameKind.WELCOME, CONNECTION_REQUEST, welcome))
        return client_id

    async def _read_frame(
        self, connection: ServerConnection, stream: ServerStream, expected: FrameKind
    ) -> tuple[FrameHeader, bytes]:
        if not stream.has(HEADER_BYTES):  # else the next request is already there, and nobody need wait for it
            connection.busy = False
            await stream.until(HEADER_BYTES, self._limits.idle_timeout_s)
        header = parse_header(stream.peek(HEADER_BYTES))
        if header.kind is not expected:
            raise InvalidInput(f"a {header.kind.name} frame where {expected.name} is expected")
        if not stream.has(HEADER_BYTES + header.length):
            connection.busy = False
            await stream.until(HEADER_BYTES + header.length, self._limits.handshake_timeout_s)
        connection.busy = True
        return header, stream.take(HEADER_BYTES + header.length)[HEADER_BYTES:]

    def _displace(self, connection: ServerConnection | None) -> None:
        """Close a connection that gave way to another."""
        if connection is not None:
            full = SourceUnavailable("the data server is full; the connection gave way to another")
            connection.say(_error_frame(CONNECTION_REQUEST, full))
            connection.abort()
            if connection.busy:
                connection.task.cancel()  # it may wait for what its client will not receive
            self._displaced.note(f"room for another from {connection.address}")
            self._watcher(ConnectionShed("displaced"))

    def _abort_slow(self) -> None:
        """End the answers that hold memory for too long while other requests wait for it."""
        for connection in self.connections:
            if connection.writer is not None and connection.writer.is_slow_when_full():
                _log.info("client reads too slowly while others wait", extra={"client_id": connection.client_id})
                connection.abort()
                self._watcher(ConnectionShed("slow"))


def _goodbye() -> bytes:
    return json_frame(FrameKind.GOODBYE, CONNECTION_REQUEST, Goodbye("the data server is closing"))


def _error_frame(request: int, error: DataError) -> bytes:
    return json_frame(FrameKind.ERROR, request, failure_of(error))
