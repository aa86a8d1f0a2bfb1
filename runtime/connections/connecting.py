"""Connections to a host of several addresses: the first one that answers is taken.

The rules kept here: an address that never answers, as where a machine has IPv6 and no way for it, costs a moment, not
the whole time in which a connection has to open; a connection is made to an address that was checked, without
resolving the host's name once more.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeAlias, TypeVar

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.state.errors import NotAllowed

NEXT_ADDRESS_AFTER_S = 0.25
"""Time for which an address is tried alone; after that the next one is tried beside it (RFC 8305, section 5)."""
MAX_ADDRESSES = 16
"""Maximum number of a host's addresses that are tried."""
Address: TypeAlias = tuple[int, int, int, str, Any]
"""Family, type, protocol, name and address of a socket, as `getaddrinfo` returns them."""


T = TypeVar("T")


async def connected_socket(
    host: str, port: int, prepare: Callable[[socket.socket], None] | None = None, reach: Reach | None = None
) -> socket.socket:
    """Return a socket that is connected to whichever of a host's addresses answers first; it does not block.

    Args:
        host: name or address.
        port: on all of its addresses.
        prepare: sets options of each socket before it is connected.
        reach: the addresses that may be connected; None for all.

    Raises:
        OSError: no address answers, or the host has none. The caller bounds the time.
        NotAllowed: the host has addresses, none of which may be connected.
    """
    found = await allowed_addresses(host, port, reach)
    connected = await first_connected(found, partial(_attempt, prepare=prepare), _closed)
    if reach is not None:
        reach.connected(host, port, connected.getpeername()[0])
    return connected


async def allowed_addresses(host: str, port: int, reach: Reach | None) -> list[Address]:
    """Return the addresses of a host that may be connected, at least one. Raises as `connected_socket`."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not the name of a host") from error
    allowed, refusals = [], []
    for address in in_turn(found):
        try:
            if reach is not None:
                reach.check(host, str(address[-1][0]), port)
            allowed.append(address)
        except NotAllowed as refusal:
            refusals.append(refusal)
    if allowed:
        return allowed[:MAX_ADDRESSES]
    raise refusals[0] if refusals else ConnectionError(f"{host} has no address")


async def check_behind_proxy(host: str, port: int, reach: Reach | None) -> None:
    """Raise `NotAllowed` if a proxy would be asked for a host that may not be connected, as far as it is known here.

    A proxy resolves names itself; one that is not known on this machine is left to it.
    """
    with contextlib.suppress(OSError):
        await allowed_addresses(host, port, reach)


async def first_connected(
    addresses: Sequence[Address], connect: Callable[[Address], Awaitable[T]], close: Callable[[T], Awaitable[None]]
) -> T:
    """Return the connection to whichever address answers first.

    Args:
        addresses: at least one.
        connect: returns a connection, or raises `OSError`.
        close: closes one that is not needed.

    Raises:
        OSError: no address answers.
    """
    if len(addresses) == 1:
        return await connect(addresses[0])
    left = deque(addresses)
    connected: list[T] = []
    failures: list[OSError] = []

    async def attempt(address: Address) -> None:
        try:
            connected.append(await connect(address))
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
            await close(line)
        raise
    for line in connected[1:]:
        await close(line)
    if not connected:
        raise min(failures, key=lambda failure: not isinstance(failure, ConnectionRefusedError))
    return connected[0]


def in_turn(addresses: Sequence[Address]) -> list[Address]:
    """Return the addresses so that those of different families take turns, in the order given (RFC 8305, section 4)."""
    families = dict.fromkeys(address[0] for address in addresses)
    rows = zip_longest(*([address for address in addresses if address[0] == family] for family in families))
    return [address for address in chain.from_iterable(rows) if address is not None]


async def _closed(line: socket.socket) -> None:
    line.close()


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
