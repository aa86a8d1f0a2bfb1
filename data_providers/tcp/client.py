"""Samples from a TCP data server (`frames.py` has the protocol).

One connection serves all calls: requests are sent without waiting, and tokens are received straight into the answer's
own memory. If the connection breaks, the calls under way raise `SourceUnavailable`; the next call connects again,
and the server must then still serve the same dataset.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from data_providers.description import describe_spec
from data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable, TokenBatch
from data_providers.tcp.frames import (
    CONNECTION_REQUEST,
    HEADER_BYTES,
    MAX_REQUEST_NUMBER,
    FrameHeader,
    FrameKind,
    Hello,
    Welcome,
    error_of,
    get_frame,
    json_frame,
    parse_header,
)
from state.errors import DataError, InternalError, InvalidDocument
from state.intervals import DataIds
from state.wire import parse_document

CONNECT_TIMEOUT_S = 15.0
"""Time limit for a connection with its handshake; longer than a server's gate may wait for its coordinator."""

ANSWER_TIMEOUT_S = 60.0
"""Time limit for one `get_samples`; after it the connection is dropped."""

PIECE_BYTES = 1024**2
"""Approximate size of the requests into which a call is split; each is at least one sample."""


@dataclass(frozen=True, slots=True)
class DataServerAddress:
    """Address of the server, and its client's run."""

    host: str
    port: int
    run_id: str

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"


@dataclass(eq=False, slots=True)
class _Call:
    """One `get_samples` under way, done when no piece is missing."""

    done: asyncio.Future[None]
    missing: int

    def fail(self, error: DataError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _ClientConnection(asyncio.BufferedProtocol):
    """Receives frames, each payload straight into its place in the answer.

    The pieces of a failed or cancelled call are still received, into memory that nothing else uses any more.
    """

    def __init__(self, address: DataServerAddress) -> None:
        self._address = address
        self._pieces: dict[int, tuple[_Call, memoryview]] = {}
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._frame: FrameHeader | None = None
        self._target = self._header
        self._filled = 0
        self._last_request = 0
        self.transport: asyncio.Transport | None = None
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.lost: DataError | None = None
        self.received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise InternalError("a TCP connection without a byte transport")
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(SourceUnavailable(f"{self._address} closed the connection{f': {exc}' if exc else ''}"))

    def drop(self, error: DataError) -> None:
        """End the connection, and every call under way with `error`."""
        self.lost = self.lost or error
        for call, _ in self._pieces.values():
            call.fail(self.lost)
        self._pieces.clear()
        if not self.welcome.done():
            self.welcome.set_exception(self.lost)
        if self.transport is not None:
            self.transport.abort()

    def send(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def request(self, call: _Call, data_ids: DataIds, target: memoryview) -> None:
        """Ask for a piece of a call, to be received into `target`."""
        self._last_request = self._last_request % MAX_REQUEST_NUMBER + 1
        self._pieces[self._last_request] = (call, target)
        self.send(get_frame(self._last_request, data_ids))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self.received_bytes += nbytes
        if self._filled < len(self._target):
            return
        try:
            if self._frame is None:
                self._begin_payload(parse_header(self._header))
            else:
                self._end_payload(self._frame)
        except InvalidDocument as error:
            self.drop(SourceUnavailable(f"{self._address} breaks the protocol: {error.message}"))

    def _begin_payload(self, frame: FrameHeader) -> None:
        self._frame, self._filled = frame, 0
        if frame.kind is FrameKind.SAMPLES:
            _, self._target = self._piece(frame)
            if len(self._target) != frame.length:
                raise InvalidDocument(f"{frame.length} bytes of samples where {len(self._target)} were asked for")
        elif frame.length:
            self._target = memoryview(bytearray(frame.length))
        else:
            raise InvalidDocument(f"an empty {frame.kind.name} frame")

    def _end_payload(self, frame: FrameHeader) -> None:
        payload = self._target
        self._frame, self._target, self._filled = None, self._header, 0
        if frame.kind is FrameKind.SAMPLES:
            call, _ = self._piece(frame)
            del self._pieces[frame.request]
            call.missing -= 1
            if not call.missing and not call.done.done():
                call.done.set_result(None)
        elif frame.kind is FrameKind.WELCOME and not self.welcome.done():
            self.welcome.set_result(parse_document(Welcome, bytes(payload)))
        elif frame.kind is FrameKind.ERROR and frame.request == CONNECTION_REQUEST:
            self.drop(error_of(bytes(payload)))
        elif frame.kind is FrameKind.ERROR:
            call, _ = self._piece(frame)
            call.fail(error_of(bytes(payload)))
            del self._pieces[frame.request]
        else:
            raise InvalidDocument(f"an unexpected {frame.kind.name} frame")

    def _piece(self, frame: FrameHeader) -> tuple[_Call, memoryview]:
        piece = self._pieces.get(frame.request)
        if piece is None:
            raise InvalidDocument(f"a {frame.kind.name} frame for request {frame.request}, which does not expect one")
        return piece


class TcpDataProvider:
    """A `DataProvider` over a TCP data server. Make one with `open`."""

    def __init__(self, address: DataServerAddress, ticket: Callable[[], str], connection: _ClientConnection) -> None:
        self._address = address
        self._ticket = ticket
        self._connection = connection
        self._welcome = connection.welcome.result()
        self._spec = DatasetSpec(self._welcome.token_size_bytes, self._welcome.sequence_length)
        self.sequence_count = self._welcome.sequence_count
        self.sequence_length = self._spec.sequence_length
        self.fingerprint: str = self._welcome.fingerprint
        self.description = describe_spec("a data server", self._spec, self.sequence_count)
        self._connecting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, address: DataServerAddress, ticket: Callable[[], str]) -> Self:
        """Connect to the server. `ticket` returns the client's current ticket, for each connection.

        Raises:
            SourceUnavailable: the server cannot be reached now; retry.
            Rejected: there is no such host, or the server does not admit this client and says why.
        """
        try:
            return cls(address, ticket, await _connect(address, ticket()))
        except SourceUnavailable as error:
            if isinstance(error.__cause__, socket.gaierror) and error.__cause__.errno == socket.EAI_NONAME:
                raise Rejected(f"there is no host {address.host!r}; check the address {address}") from error
            raise

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`."""
        connection = await self._connected()
        tokens = self._spec.empty_tokens(data_ids)
        view = tokens.view(np.uint8).data
        pieces = list(data_ids.pieces(max(PIECE_BYTES // self._spec.sequence_bytes, 1)))
        call = _Call(asyncio.get_running_loop().create_future(), len(pieces))
        received_before_bytes = connection.received_bytes
        for piece in pieces:
            size_bytes = piece.count * self._spec.sequence_bytes
            connection.request(call, piece, view[:size_bytes])
            view = view[size_bytes:]
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await call.done
        except TimeoutError as error:
            late = SourceUnavailable(f"{self._address} does not answer in {ANSWER_TIMEOUT_S} s")
            connection.drop(late)
            raise late from error
        except asyncio.CancelledError:
            if connection.received_bytes == received_before_bytes:
                # The caller may have cancelled because the connection is dead: the next call needs a new one.
                connection.drop(SourceUnavailable(f"{self._address} was silent until a call was cancelled"))
            raise
        return TokenBatch.fixed_length(tokens, self._spec.sequence_length)

    async def aclose(self) -> None:
        self._closed = True
        async with self._connecting:
            self._connection.drop(SourceUnavailable("the provider was closed"))

    async def _connected(self) -> _ClientConnection:
        async with self._connecting:
            if self._closed:
                raise InternalError("get_samples after aclose")
            if self._connection.lost is None:
                return self._connection
            connection = await _connect(self._address, self._ticket())
            served = connection.welcome.result()
            if served != self._welcome:
                changed = CorruptData(
                    f"{self._address} served the dataset {self._welcome.fingerprint}, and now {served.fingerprint}"
                )
                connection.drop(changed)
                raise changed
            self._connection = connection
            return connection


async def _connect(address: DataServerAddress, ticket: str) -> _ClientConnection:
    """Connect and shake hands."""
    connection = _ClientConnection(address)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(lambda: connection, address.host, address.port)
            connection.send(json_frame(FrameKind.HELLO, CONNECTION_REQUEST, Hello(address.run_id, ticket)))
            await connection.welcome
    except BaseException as error:
        connection.welcome.cancel()
        connection.drop(SourceUnavailable(f"the connection to {address} failed"))
        if isinstance(error, OSError):  # a TimeoutError is an OSError too
            raise SourceUnavailable(f"{address} cannot be reached: {str(error) or 'no answer in time'}") from error
        raise
    return connection
