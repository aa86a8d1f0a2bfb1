"""The TCP data server: serves one `DataProvider` to the clients that its gate admits (`frames.py` has the protocol).

The requests of a connection are answered in order, and the next one is read only after the last answer was sent, so
that a connection holds one answer in memory. `server_limits.py` bounds everything that a client can delay.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from epochal.data_providers.protocol import DataProvider, Rejected, SourceUnavailable
from epochal.data_providers.tcp.answer_memory import AnswerMemory
from epochal.data_providers.tcp.frames import (
    CONNECTION_REQUEST,
    HEADER_BYTES,
    FrameHeader,
    FrameKind,
    Get,
    Hello,
    failure_of,
    frame_header,
    json_frame,
    parse_get,
    parse_header,
)
from epochal.data_providers.tcp.payloads import Shape, answer_of, most_answer_bytes, welcome_of
from epochal.data_providers.tcp.sending import SEND_PIECE_BYTES, PacedWriter, TooSlow
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS, ServerLimits
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.connections.accepting import Acceptor, listening_socket
from epochal.runtime.connections.shedding import Connection, ServerConnections, Shed
from epochal.runtime.connections.throttled_log import RareLog
from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId, parse_document

READ_AHEAD_BYTES = 4 * 1024
"""Bytes of requests that are read while one is being answered, before the connection is read no further."""
RECEIVE_BUFFER_BYTES = 32 * 1024
"""The system's memory for a connection's requests, which are small."""

CLOSING = "the data server is closing"

_log = logging.getLogger(__name__)


class Gate(Protocol):
    """Decides what clients may read. `admit` and `allow` may wait, within their own bounds, before they decide."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        """Return the client of this ticket for this run.

        Raises:
            Rejected: another run is served, or the ticket is not valid; the client's fault.
            SourceUnavailable: the gate cannot decide now; retry.
        """
        ...

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        """Raise `Rejected` unless the client may read these data indices; `SourceUnavailable` if undecided now.

        `version` is that of the run document which the client follows, or `frames.ANY_VERSION`.
        """
        ...

    def is_in_rounds(self, client_id: ClientId) -> bool:
        """Return whether the client may read anything now. Such clients have the first claim to a place."""
        ...


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


@dataclass(eq=False, slots=True)
class _Served:
    """A connection that is being served; unless it is `busy`, it waits for its client and may be closed at any time."""

    connection: Connection
    reader: asyncio.StreamReader
    writer: PacedWriter
    task: asyncio.Task[None] | None
    client_id: ClientId | None = None
    busy: bool = False


class DataServer:
    """Serves a provider's samples on a socket. `aclose` does not close the provider.

    Args:
        provider: a `BoundedProvider` where samples have any length.
        shape: of its samples.
        gate: decides who may read what.
        limits: bound what a client may delay.
        tls: for TLS.
    """

    def __init__(
        self,
        provider: DataProvider,
        shape: Shape,
        gate: Gate,
        limits: ServerLimits = DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._provider = provider
        self._shape = shape
        self._gate = gate
        self._limits = limits
        self._tls = tls
        self._listener: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self.connections = ServerConnections(
            limits.connections, has_claim=lambda owner: gate.is_in_rounds(ClientId(owner))
        )
        self.memory = AnswerMemory(limits.max_answer_bytes, limits.answer_wait_s, self._abort_slow)
        self._served: set[_Served] = set()
        self._ended = Broadcast()
        self._closing = False
        self._watchers: list[Callable[[RequestEnded], None]] = []
        self._turned_away = RareLog(_log, "client turned away")

    def watch(self, watcher: Callable[[RequestEnded], None]) -> None:
        """Call `watcher`, too, whenever a request ends. It must return at once."""
        self._watchers.append(watcher)

    def _note(self, ended: RequestEnded) -> None:
        for watcher in self._watchers:
            watcher(ended)

    async def start(self, tasks: asyncio.TaskGroup, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses if `port` is 0; `OSError` if that is impossible.

        Args:
            tasks: serve the connections until `aclose`.
            host, port: where to listen.
        """
        self._listener = listening_socket(host, port)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._acceptor = Acceptor(self._listener, self.connections, partial(self._protocol_of, tasks), self._tls)
        self._acceptor.start()
        bound: int = self._listener.getsockname()[1]
        _log.info("data server listens", extra={"host": host, "port": bound, "fingerprint": self._provider.fingerprint})
        return bound

    async def aclose(self) -> None:
        """Stop accepting, finish the answers under way within the bound, say so, and close.

        Clients ask another server for the rest. May be repeated.
        """
        if self._acceptor is None or self._listener is None or self._closing:
            return
        self._closing = True
        self._acceptor.close()
        await self._acceptor.wait_closed()
        self._listener.close()
        for served in self._served:
            if not served.busy:
                served.writer.say(_error_frame(CONNECTION_REQUEST, SourceUnavailable(CLOSING)))
                served.writer.close()
        try:
            async with asyncio.timeout(self._limits.shutdown_timeout_s):
                await self._all_ended()
        except TimeoutError:
            for served in self._served:
                served.writer.abort()
                if served.task is not None:
                    served.task.cancel()
            await self._all_ended()

    async def _all_ended(self) -> None:
        while self._served:
            await self._ended.wait()

    def _protocol_of(self, tasks: asyncio.TaskGroup, connection: Connection) -> asyncio.Protocol:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection.abort = writer.transport.abort
            served = _Served(connection, reader, PacedWriter(writer, self._limits), None)
            self._served.add(served)
            served.task = tasks.create_task(self._serve(served))

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(READ_AHEAD_BYTES), begin)

    async def _serve(self, served: _Served) -> None:
        try:
            if served.connection.is_held:  # else it was shed while it was opened
                await self._converse(served)
            if self._tls is not None:
                served.writer.close()  # what was written is sent, or given up in time
            else:
                served.writer.abort()  # whatever was sent is with the system; the rest nobody waits for
        except TooSlow as error:
            _log.info("client reads too slowly", extra={"client_id": served.client_id, "received": str(error)})
            self._shed_slow(served)
        except (OSError, EOFError) as error:  # a TimeoutError is an OSError
            _log.debug("data connection ended", extra={"error": type(error).__name__})
            served.writer.abort()
        except Exception:  # a bug here or in a provider: only this client's connection breaks
            _log.exception("data connection failed")
            served.writer.abort()
        finally:
            self.connections.forget(served.connection)
            self._served.discard(served)
            self._ended.notify()

    async def _converse(self, served: _Served) -> None:
        client_id = served.client_id = await self._shake_hands(served)
        if client_id is None:
            return
        while not self._closing:
            try:
                header, payload = await self._read_frame(served, FrameKind.GET, self._limits.idle_timeout_s)
                wanted = parse_get(payload)
            except InvalidInput as error:
                served.writer.say(_error_frame(CONNECTION_REQUEST, Rejected(error.message)))
                return
            await self._answer(served.writer, client_id, header.request, wanted)
        served.writer.say(_error_frame(CONNECTION_REQUEST, SourceUnavailable(CLOSING)))

    async def _answer(self, writer: PacedWriter, client_id: ClientId, request: int, wanted: Get) -> None:
        """Send the samples, if the client may have them, or else the reason why not."""
        data_ids = wanted.data_ids
        started_s = time.perf_counter()
        try:
            most_bytes = most_answer_bytes(self._shape, data_ids)
            await self._gate.allow(client_id, data_ids, wanted.version)
            async with self.memory.hold(client_id, most_bytes + SEND_PIECE_BYTES) as shrink:
                payload, sample_count = await answer_of(self._provider, self._shape, data_ids)
                shrink(len(payload) + SEND_PIECE_BYTES)
                await writer.send(frame_header(FrameKind.SAMPLES, request, len(payload)), payload)
        except DataError as error:
            facts = {"client_id": client_id, "data_ids": str(data_ids), "kind": error.kind, "error": error.message}
            _log.info("request failed", extra=facts)
            await writer.send(_error_frame(request, error))
            self._note(RequestEnded(error.kind, client_id, duration_s=time.perf_counter() - started_s))
        else:
            took_s = time.perf_counter() - started_s
            self._note(RequestEnded(None, client_id, sample_count, len(payload), took_s))

    async def _shake_hands(self, served: _Served) -> ClientId | None:
        """Return the admitted client; None when it was turned away."""
        try:
            if self._closing:
                raise SourceUnavailable(CLOSING)
            _, payload = await self._read_frame(served, FrameKind.HELLO, self._limits.handshake_timeout_s)
            hello = parse_document(Hello, payload)
            client_id = await self._gate.admit(hello.run_id, hello.ticket)
        except InvalidInput as error:
            served.writer.say(_error_frame(CONNECTION_REQUEST, Rejected(error.message)))
            return None
        except DataError as error:
            self._turned_away.note(f"{served.connection.address}: {error}")
            self._note(RequestEnded(error.kind))
            served.writer.say(_error_frame(CONNECTION_REQUEST, error))
            return None
        self.connections.vouch(served.connection, client_id)
        welcome = welcome_of(self._shape, self._provider.fingerprint, self._provider.sequence_count)
        await served.writer.send(json_frame(FrameKind.WELCOME, CONNECTION_REQUEST, welcome))
        return client_id

    async def _read_frame(self, served: _Served, expected: FrameKind, wait_s: float) -> tuple[FrameHeader, bytes]:
        """Return the next frame, of which nothing may arrive for some time, and then all of it in little time."""
        served.busy = False
        async with asyncio.timeout(wait_s):
            header = parse_header(await served.reader.readexactly(HEADER_BYTES))
        if header.kind is not expected:
            raise InvalidInput(f"a {header.kind.name} frame where {expected.name} is expected")
        async with asyncio.timeout(self._limits.handshake_timeout_s):
            payload = await served.reader.readexactly(header.length)
        served.busy = True
        return header, payload

    def _abort_slow(self) -> None:
        """End the answers that hold memory for too long while other requests wait for it."""
        for served in self._served:
            if served.writer.is_slow_when_full():
                _log.info("client reads too slowly while others wait", extra={"client_id": served.client_id})
                self._shed_slow(served)

    def _shed_slow(self, served: _Served) -> None:
        if served.connection.is_held:
            self.connections.shed(served.connection, Shed.UNREAD)
        served.writer.abort()


def _error_frame(request: int, error: DataError) -> bytes:
    return json_frame(FrameKind.ERROR, request, failure_of(error))
