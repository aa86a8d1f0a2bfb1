"""Listening for connections, and taking them one at a time, so that a rush of strangers cannot overrun the server."""

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from typing import NoReturn

from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.data_providers.tcp.stream import ServerStream
from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.connections.throttled_log import RareLog
from epochal.runtime.os_errors import reason_of

BACKLOG = 1024
"""Connections that the system holds until they are accepted."""
RECEIVE_BUFFER_BYTES = 32 * 1024
"""The system's memory for a connection's requests, which are small."""
UNSENT_BYTES = 512 * 1024
"""Bytes of an answer that the system takes before the network has room for them, where this can be set."""
TLS_BUFFER_BYTES = 16 * 1024
"""Bytes that a TLS connection receives at a time: as much as one record; requests are smaller."""
OUT_OF_RESOURCES_WAIT_S = 0.5
"""Wait for descriptors or memory when the system has none for another connection."""

_log = logging.getLogger(__name__)


async def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of the host, at one port; 0 picks it. Raise `OSError` if not."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address[0]) for family, _, _, _, address in found):
            listener = socket.create_server((str(address), port), family=family, backlog=BACKLOG)
            listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            port = listener.getsockname()[1]
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


async def accept_for_ever(
    listener: socket.socket, serve: Callable[[socket.socket, str], None], until_room: Callable[[str], Awaitable[None]]
) -> NoReturn:
    """Accept connections for ever.

    Args:
        listener: what to accept them from.
        serve: takes each connection, which is its own from then on, and its peer's address; returns at once.
        until_room: returns once a connection from this address may be taken; those behind it wait as well.
    """
    loop = asyncio.get_running_loop()
    failed = RareLog(_log, "accept_failed")
    while True:
        try:
            accepted, peername = await loop.sock_accept(listener)
        except ConnectionError:  # it ended before it was accepted
            continue
        except OSError as error:
            failed.note(reason_of(error))
            await asyncio.sleep(OUT_OF_RESOURCES_WAIT_S)
            continue
        try:
            address = sender_of(str(peername[0]))
            await until_room(address)
            _bound_buffers(accepted)
            serve(accepted, address)
        except OSError as error:
            accepted.close()
            _log.debug("connection ended before it was served", extra={"error": str(error)})
        except BaseException:
            accepted.close()
            raise


async def open_stream(
    accepted: socket.socket, stream: ServerStream, tls: ssl.SSLContext | None, limits: ServerLimits
) -> None:
    """Connect an accepted connection with its stream, after its TLS handshake if it has one.

    Raises:
        OSError: the connection ended, or its client does not speak TLS, or not in time.
    """
    loop = asyncio.get_running_loop()
    if tls is None:
        await loop.connect_accepted_socket(lambda: stream, accepted)
        return
    ready: asyncio.Future[None] = loop.create_future()
    wait_s = limits.handshake_timeout_s
    protocol = _SmallTlsProtocol(
        loop,
        stream,
        tls,
        ready,
        server_side=True,
        ssl_handshake_timeout=wait_s,  # type: ignore[arg-type]  # seconds may have fractions
        ssl_shutdown_timeout=wait_s,
    )
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
    try:
        await ready
    except BaseException:
        transport.abort()
        raise


class _SmallTlsProtocol(SSLProtocol):
    """TLS with a smaller buffer for what it receives: asyncio's own has 256 KiB for each connection, idle or not."""

    max_size = TLS_BUFFER_BYTES


def _bound_buffers(accepted: socket.socket) -> None:
    """Bound what the system keeps of an answer, and send every part of it at once."""
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
