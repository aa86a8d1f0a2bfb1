"""A client's connection to one data server (`frames.py` has the protocol).

Tokens are received straight into their place in the answer. The rule kept here: a ticket is not sent in clear to
another machine, unless the client's options allow it.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from epochal.data_providers.protocol import OutOfRange, Rejected, SourceUnavailable, TooManyBytes
from epochal.data_providers.tcp.frames import (
    ANY_VERSION,
    CONNECTION_REQUEST,
    HEADER_BYTES,
    MAX_REQUEST_NUMBER,
    AnotherVersion,
    FrameHeader,
    FrameKind,
    Hello,
    Welcome,
    error_of,
    get_frame,
    json_frame,
    parse_header,
)
from epochal.data_providers.tcp.payloads import ArrivingSamples
from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import connected_socket
from epochal.runtime.connections.limited_transport import limited
from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.http.http_client import not_trusted
from epochal.state.errors import DataError, InternalError, InvalidDocument, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.text.visible import visible
from epochal.state.wire import parse_document

CONNECT_TIMEOUT_S = 15.0
"""Time limit for a connection with its handshake; longer than a server's gate may wait for its coordinator."""

_TLS_ALERT = 0x15
"""First byte of the alert that a TLS server sends to a client without TLS (RFC 8446, 5.1)."""


@dataclass(frozen=True, slots=True)
class DataServerAddress:
    """Address of a server, and its client's run."""

    host: str
    port: int
    run_id: str
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'tcp'}://{host}:{self.port}"


def _any_version() -> int:
    return ANY_VERSION


@dataclass(frozen=True, slots=True)
class DataServerAccess:
    """Options for requests to data servers.

    Attributes:
        ticket: returns its current ticket from the coordinator, for each connection.
        document_version: returns the version of the run document that it follows, for each request.
        trust: what certificates are verified with: a file of authorities (PEM), or True for the system's.
        insecure: whether tickets and samples may travel unencrypted to other machines.
        reach: the addresses that may be connected; None for all.
    """

    ticket: Callable[[], str]
    document_version: Callable[[], int] = _any_version
    trust: bool | str = True
    insecure: bool = False
    reach: Reach | None = None

    def tls_context(self) -> ssl.SSLContext:
        """Return what verifies connections over TLS. Raise `InvalidInput` if the file holds no certificates."""
        cafile = self.trust if isinstance(self.trust, str) else None
        try:
            return ssl.create_default_context(cafile=cafile)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidInput(f"--tls-ca {cafile}: {error.strerror or error}", path=cafile) from error


TicketOrAccess: TypeAlias = Callable[[], str] | DataServerAccess
"""A function that returns a client's ticket suffices where the rest is as usual."""


class WantedPiece(NamedTuple):
    """A part of an answer: its data indices, and the memory for its tokens, or what takes samples of any length."""

    data_ids: DataIds
    target: memoryview | ArrivingSamples


@dataclass(eq=False, slots=True)
class Call:
    """Pieces that are requested from one server. `done` once all have ended, or with an error.

    Attributes:
        missing: the pieces that have not been received, by request number.
        rest: what the answers to other pieces left out.
        errors: of the server's own answers to some of them.
    """

    done: asyncio.Future[None]
    missing: dict[int, WantedPiece] = field(default_factory=dict)
    rest: list[WantedPiece] = field(default_factory=list)
    errors: dict[int, DataError] = field(default_factory=dict)

    def received(self, request: int, payload: memoryview) -> None:
        """Count a piece as received. Raise `InvalidDocument` if its samples are none; the server's fault."""
        data_ids, target = self.missing[request]
        if isinstance(target, ArrivingSamples):
            try:
                rest = target.take(data_ids, payload)
            except TooManyBytes as error:
                self.refused(request, error)
                return
            if rest is not None:
                self.rest.append(WantedPiece(rest, target))
        del self.missing[request]
        self._end_if_over()

    def refused(self, request: int, error: DataError) -> None:
        """Count a piece as failed; end the call where another server would say the same."""
        self.errors[request] = error
        if isinstance(error, Rejected | OutOfRange):
            self.fail(error)
        self._end_if_over()

    def fail(self, error: DataError) -> None:
        """End the call."""
        if not self.done.done():
            self.done.set_exception(error)

    def _end_if_over(self) -> None:
        if len(self.errors) == len(self.missing) and not self.done.done():
            if self.errors:
                self.done.set_exception(next(iter(self.errors.values())))
            else:
                self.done.set_result(None)


class ClientConnection(asyncio.BufferedProtocol):
    """Receives frames, each payload straight into its place in the answer.

    The pieces of a failed or cancelled call are still received, into memory that nothing else uses any more.
    """

    def __init__(self, address: DataServerAddress) -> None:
        self._address = address
        self._calls: dict[int, Call] = {}
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
        self._end(f": {exc}" if exc else "")

    def drop(self, error: DataError) -> None:
        """End the connection, and every call under way with `error`."""
        self.lost = self.lost or error
        for call in self._calls.values():
            call.fail(self.lost)
        self._calls.clear()
        if not self.welcome.done():
            self.welcome.set_exception(self.lost)
        if self.transport is not None:
            self.transport.abort()

    def send(self, data: bytes) -> None:
        """Send bytes, unless the connection is not there."""
        if self.transport is not None:
            self.transport.write(data)

    def ask(self, pieces: Sequence[WantedPiece], version: int) -> Call:
        """Ask for pieces, each to be received into its own memory.

        Args:
            pieces: what is wanted, at least one.
            version: of the run document that assigns them to this client.
        """
        call = Call(asyncio.get_running_loop().create_future())
        frames = bytearray()
        for piece in pieces:
            self._last_request = self._last_request % MAX_REQUEST_NUMBER + 1
            self._calls[self._last_request] = call
            call.missing[self._last_request] = piece
            frames += get_frame(self._last_request, piece.data_ids, version)
        if self.lost is not None:
            call.fail(self.lost)
        else:
            self.send(bytes(frames))
        return call

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
        except AnotherVersion as error:
            self.drop(Rejected(f"{self._address} speaks {error.message}; update the older of the two"))
        except InvalidDocument as error:
            self.drop(SourceUnavailable(f"{self._address} breaks the protocol: {visible(error.message)}"))

    def _end(self, reason: str) -> None:
        """Drop a connection that the server has closed."""
        over_tls = replace(self._address, tls=True)
        if self._frame is None and self._filled and self._header[0] == _TLS_ALERT:
            self.drop(Rejected(f"{self._address} speaks TLS: its address is {over_tls}"))
        if not self.received_bytes and not self._address.tls:
            reason += f" before it sent anything; if it speaks TLS, its address is {over_tls}"
        self.drop(SourceUnavailable(f"{self._address} closed the connection{reason}"))

    def _begin_payload(self, frame: FrameHeader) -> None:
        self._frame, self._filled = frame, 0
        if frame.kind is FrameKind.SAMPLES:
            target = self._call_of(frame).missing[frame.request].target
            self._target = memoryview(bytearray(frame.length)) if isinstance(target, ArrivingSamples) else target
            if len(self._target) != frame.length or not frame.length:
                raise InvalidDocument(f"{frame.length} bytes of samples where {len(self._target)} were asked for")
        elif frame.length:
            self._target = memoryview(bytearray(frame.length))
        else:
            raise InvalidDocument(f"an empty {frame.kind.name} frame")

    def _end_payload(self, frame: FrameHeader) -> None:
        payload = self._target
        self._frame, self._target, self._filled = None, self._header, 0
        if frame.kind is FrameKind.SAMPLES:
            self._call_of(frame).received(frame.request, payload)
            del self._calls[frame.request]
        elif frame.kind is FrameKind.WELCOME and not self.welcome.done():
            self.welcome.set_result(parse_document(Welcome, bytes(payload)))
        elif frame.kind is FrameKind.ERROR and frame.request == CONNECTION_REQUEST:
            self.drop(error_of(bytes(payload), str(self._address)))
        elif frame.kind is FrameKind.ERROR:
            error = error_of(bytes(payload), str(self._address))
            self._call_of(frame).refused(frame.request, error)
            del self._calls[frame.request]
        else:
            raise InvalidDocument(f"an unexpected {frame.kind.name} frame")

    def _call_of(self, frame: FrameHeader) -> Call:
        call = self._calls.get(frame.request)
        if call is None:
            raise InvalidDocument(f"a {frame.kind.name} frame for request {frame.request}, which does not expect one")
        return call


async def connect(address: DataServerAddress, access: DataServerAccess) -> ClientConnection:
    """Connect to a server and shake hands.

    Raises:
        SourceUnavailable: it cannot be reached now; retry.
        Rejected: its certificate is not trusted, the ticket would travel in clear, or the server does not admit this
            client and says why.
        InvalidInput: the file of certificates is not one, or the server may not be connected.
    """
    connection = ClientConnection(address)
    tls = access.tls_context() if address.tls else None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connected = await connected_socket(address.host, address.port, reach=access.reach)
            name = address.host if address.tls else None
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: connection, sock=connected, ssl=tls, server_hostname=name
            )
            connection.transport = limited(transport, connection)
            if tls is None and not access.insecure:
                _check_loopback(address, transport)
            connection.send(json_frame(FrameKind.HELLO, CONNECTION_REQUEST, Hello(address.run_id, access.ticket())))
            await connection.welcome
    except BaseException as error:
        connection.welcome.cancel()
        connection.drop(SourceUnavailable(f"the connection to {address} failed"))
        if isinstance(error, OSError):  # a TimeoutError is an OSError too
            raise _unreachable(address, error) from error
        raise
    return connection


def _check_loopback(address: DataServerAddress, transport: asyncio.Transport) -> None:
    reached = str(transport.get_extra_info("peername", ("",))[0]).partition("%")[0].removeprefix("::ffff:")
    if not is_loopback(reached):
        raise Rejected(
            f"{address} is another machine ({reached}), and this client's ticket would travel unencrypted; "
            f"write tls:// where the server has a certificate, or accept it with --insecure"
        )


def _unreachable(address: DataServerAddress, error: OSError) -> DataError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Rejected(not_trusted(address, error))
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return Rejected(f"{address} does not speak TLS: its address is tcp://{address.host}:{address.port}")
    return SourceUnavailable(f"{address} cannot be reached: {str(error) or 'no answer in time'}")
