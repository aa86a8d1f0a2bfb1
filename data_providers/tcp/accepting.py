"""Listening for connections, and taking them one at a time, so that a rush of strangers cannot overrun the server."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

from runtime.by_address import sender_of
from runtime.os_errors import reason_of
from runtime.rare_log import RareLog

BACKLOG = 1024
"""Connections that the system holds until they are accepted."""
RECEIVE_BUFFER_BYTES = 32 * 1024
"""The system's memory for a connection's requests, which are small."""
READ_AHEAD_BYTES = 4 * 1024
"""Bytes of requests that are read while one is being answered, before the connection is read no further."""
UNSENT_BYTES = 128 * 1024
"""Bytes of an answer that the system takes before the network has room for them, where it can be told."""
OUT_OF_RESOURCES_WAIT_S = 0.5
"""Wait for descriptors or memory when the system has none for another connection."""

_log = logging.getLogger(__name__)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


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
    listener: socket.socket, serve: Serve, until_room: Callable[[str], Awaitable[None]]
) -> NoReturn:
    """Accept connections, and serve each in a task of its own.

    Args:
        serve: called with each connection.
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
            await until_room(sender_of(str(peername[0])))
            _bound_buffers(accepted)
            await loop.connect_accepted_socket(partial(_protocol, serve), accepted)
        except OSError as error:
            accepted.close()
            _log.debug("connection ended before it was served", extra={"error": str(error)})
        except BaseException:
            accepted.close()
            raise


def _protocol(serve: Serve) -> asyncio.StreamReaderProtocol:
    return asyncio.StreamReaderProtocol(asyncio.StreamReader(READ_AHEAD_BYTES), serve)


def _bound_buffers(accepted: socket.socket) -> None:
    """Bound what the system keeps of an answer, and send every part of it at once."""
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
