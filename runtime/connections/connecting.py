"""Connections to a host of several addresses: the first one that answers is taken (RFC 8305, by `aiohappyeyeballs`).

The rule kept here: a connection is made to an address that was checked, without resolving the host's name once more.
"""

import asyncio
import contextlib
import socket

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.state.errors import NotAllowed

NEXT_ADDRESS_AFTER_S = 0.25
"""Time for which an address is tried alone; after that the next one is tried beside it (RFC 8305, section 5)."""
MAX_ADDRESSES = 16
"""Maximum number of a host's addresses that are tried."""


async def connected_socket(host: str, port: int, reach: Reach | None = None) -> socket.socket:
    """Return a socket that is connected to whichever of a host's addresses answers first; it does not block.

    Args:
        host: name or address.
        port: on all of its addresses.
        reach: the addresses that may be connected; None for all.

    Raises:
        OSError: no address answers, or the host has none. The caller bounds the time.
        NotAllowed: the host has addresses, none of which may be connected.
    """
    found = await allowed_addresses(host, port, reach)
    connected = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_AFTER_S)
    if reach is not None:
        reach.connected(host, port, connected.getpeername()[0])
    return connected


async def allowed_addresses(host: str, port: int, reach: Reach | None) -> list[AddrInfoType]:
    """Return the addresses of a host that may be connected, at least one. Raises as `connected_socket`."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not the name of a host") from error
    allowed: list[AddrInfoType] = []
    refusals: list[NotAllowed] = []
    for address in found:
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
