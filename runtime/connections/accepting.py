"""Accepting connections: a few at a time, with a pause and one log line a period when descriptors run out."""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable

from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.connections.shedding import Connection, ServerConnections
from epochal.runtime.connections.throttled_log import RareLog
from epochal.runtime.os_errors import Obstacle, obstacle_of, reason_of

log = logging.getLogger(__name__)

BACKLOG = 512
"""Number of connections that the system holds until they are accepted."""
ACCEPTS_AT_A_TIME = 32
"""Maximum number of connections accepted before the requests of others continue."""
REFUSED_REST_S = 0.01
"""Wait after connections were refused: one of many costs a third less than one alone, which wakes the loop. So at most
3,200 a second are refused; the system drops more, also of members who connect again."""
ACCEPT_PAUSE_S = 0.2
"""Wait after an error, in which the system's queue holds new connections."""
SHED_FOR_DESCRIPTORS = 16
"""Number of connections shed when descriptors have run out."""
RESET = struct.pack("ii", 1, 0)
"""Option with which closing a connection resets it: the system then keeps nothing more of it."""
TLS_TIMEOUT_S = 20.0
"""Maximum time for a TLS handshake, and for the end of a TLS connection."""
TLS_BUFFER_BYTES = 256 * 1024
"""Bytes that one of an acceptor's TLS connections receives at a time."""
TLS_RECORD_BYTES = 16 * 1024
"""Maximum length of what a TLS record carries (RFC 8446, section 5.1)."""

ProtocolFactory = Callable[[Connection], asyncio.Protocol]


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens, not blocking; 0 picks a port. Raise `OSError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it every answer may wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class _TlsProtocol(SSLProtocol):
    """TLS that receives into a buffer which all connections of an event loop share, so that an idle one holds none.

    What was received is copied out of the buffer before the loop turns to another connection. asyncio's own protocol
    has 256 KiB for each connection.
    """

    max_size = TLS_RECORD_BYTES

    def share(self, buffer: bytearray) -> None:
        """Receive into this buffer from now on, at least `TLS_RECORD_BYTES` long."""
        self._ssl_buffer = buffer
        self._ssl_buffer_view = memoryview(buffer)


class Acceptor:
    """Accepts connections on a listening socket and makes a protocol for each.

    Args:
        listener: a listening socket, not blocking.
        connections: where each connection gets its place. Its protocol must `forget` it when it is lost.
        protocol_of: makes a connection's protocol. The protocol sets the connection's `abort`.
        tls: for connections over TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        connections: ServerConnections,
        protocol_of: ProtocolFactory,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._protocol_of = protocol_of
        self._tls = tls
        self._tls_buffer = bytearray(TLS_BUFFER_BYTES if tls is not None else 0)
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._errors = RareLog(log, "accept_failed")

    def start(self) -> None:
        """Accept connections from now on."""
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no further connections. The ones that are open stay."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._listener.fileno())
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no connection is being opened."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        was_refused = False
        for _ in range(ACCEPTS_AT_A_TIME):
            wait_s = self._connections.wait_s()
            if wait_s:
                self._rest(wait_s)
                return
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                self._accept_failed(error)
                return
            was_refused |= not self._open(accepted, sender_of(str(address[0])))
        if was_refused:
            self._rest(REFUSED_REST_S)

    def _accept_failed(self, error: OSError) -> None:
        self._connections.accept_error_count += 1
        self._errors.note(reason_of(error))
        if obstacle_of(error) is Obstacle.PASSING:
            for _ in range(SHED_FOR_DESCRIPTORS):
                self._connections.shed_least()
        self._rest(ACCEPT_PAUSE_S)

    def _rest(self, pause_s: float) -> None:
        """Leave new connections in the system's queue for a while."""
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(pause_s, self.start)

    def _open(self, accepted: socket.socket, address: str) -> bool:
        """Make a connection's protocol; return whether it was admitted."""

        def abort() -> None:
            with contextlib.suppress(OSError):  # the other end has closed it already
                accepted.shutdown(socket.SHUT_RDWR)

        connection = self._connections.admit(address, abort)
        if connection is None:
            with contextlib.suppress(OSError):  # the other end has closed it already
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            accepted.close()
            return False
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(connection, accepted))
        self._opening.add(task)
        task.add_done_callback(functools.partial(self._opened, connection, accepted))
        return True

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        protocol = self._protocol_of(connection)
        if self._tls is None:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
            return
        ready: asyncio.Future[None] = self._loop.create_future()
        tls = _TlsProtocol(
            self._loop,
            protocol,
            self._tls,
            ready,
            server_side=True,
            ssl_handshake_timeout=TLS_TIMEOUT_S,  # type: ignore[arg-type]  # seconds may have fractions
            ssl_shutdown_timeout=TLS_TIMEOUT_S,
        )
        tls.share(self._tls_buffer)
        transport, _ = await self._loop.connect_accepted_socket(lambda: tls, accepted)
        try:
            await ready
        except BaseException:
            transport.abort()
            raise

    def _opened(self, connection: Connection, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            log.debug("connection_not_opened", extra={"reason": str(error)})
            accepted.close()
            self._connections.forget(connection)
