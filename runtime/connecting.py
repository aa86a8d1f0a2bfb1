"""Connections to a host of several addresses: the first one that answers is taken.

The rule kept here: an address that never answers, as where a machine has IPv6 and no way for it, costs a moment, not
the whole time in which a connection has to open.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeAlias

NEXT_ADDRESS_AFTER_S = 0.25
"""Time for which an address is tried alone; after that the next one is tried beside it (RFC 8305, section 5)."""
MAX_ADDRESSES = 16
"""Maximum number of a host's addresses that are tried."""
Address: TypeAlias = tuple[int, int, int, str, Any]
"""Family, type, protocol, name and address of a socket, as `getaddrinfo` returns them."""


async def connected_socket(
    host: str, port: int, prepare: Callable[[socket.socket], None] | None = None
) -> socket.socket:
    """Return a socket that is connected to whichever of a host's addresses answers first; it does not block.

    Args:
        host: name or address.
        port: on all of its addresses.
        prepare: sets options of each socket before it is connected.

    Raises:
        OSError: no address answers, or the host has none. The caller bounds the time.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not the name of a host") from error
    left = deque(in_turn(found)[:MAX_ADDRESSES])
    if not left:
        raise ConnectionError(f"{host} has no address")
    if len(left) == 1:
        return await _attempt(left[0], prepare)
    connected: list[socket.socket] = []
    failures: list[OSError] = []

    async def attempt(address: Address) -> None:
        try:
            connected.append(await _attempt(address, prepare))
        except OSError as error:
            failures.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            waiting: set[asyncio.Task[None]] = set()
            while (left or waiting) and not connected:
                if left:
                    waiting.add(group.create_task(attempt(left.popleft())))
                within_s = NEXT_ADDRESS_AFTER_S if left else None
                _, waiting = await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
    except BaseException:
        for line in connected:
            line.close()
        raise
    for line in connected[1:]:
        line.close()
    if not connected:
        raise min(failures, key=lambda failure: not isinstance(failure, ConnectionRefusedError))
    return connected[0]


def in_turn(addresses: Sequence[Address]) -> list[Address]:
    """Return the addresses so that those of different families take turns, in the order given (RFC 8305, section 4)."""
    families = dict.fromkeys(address[0] for address in addresses)
    rows = zip_longest(*([address for address in addresses if address[0] == family] for family in families))
    return [address for address in chain.from_iterable(rows) if address is not None]


async def _attempt(address: Address, prepare: Callable[[socket.socket], None] | None) -> socket.socket:
    family, kind, protocol, _, place = address
    line = socket.socket(family, kind, protocol)
    try:
        line.setblocking(False)
        if prepare is not None:
            prepare(line)
        await asyncio.get_running_loop().sock_connect(line, place)
    except BaseException:
        line.close()
        raise
    return line
