"""A TCP connection to a host, whichever of its addresses answers (RFC 8305, "Happy Eyeballs").

The rule kept here: a socket is closed whenever its connecting is given up. asyncio's own version may forget one then.
"""

import asyncio
import contextlib
import socket
from typing import Any

HAPPY_EYEBALLS_DELAY_S = 0.25
"""After this time without an answer, the host's next address is tried too."""
MAX_ADDRESSES = 8


async def connected_socket(host: str, port: int) -> socket.socket:
    """Return a connected socket. Raise `OSError` if no address answers, or the host has none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = _interleaved(found)[:MAX_ADDRESSES]
    if len(addresses) == 1:
        return await _connected(addresses[0])
    return await _Race(addresses).won()


class _Race:
    """Attempts at several addresses, each begun when the one before fails or has had its time."""

    def __init__(self, addresses: list[Any]) -> None:
        self._addresses = addresses
        self._failed = [asyncio.Event() for _ in addresses]
        self._errors: list[OSError] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._winner: socket.socket | None = None

    async def won(self) -> socket.socket:
        """Return the first socket that is connected."""
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = [group.create_task(self._attempt(number)) for number in range(len(self._addresses))]
        except BaseException:
            if self._winner is not None:
                self._winner.close()
            raise
        if self._winner is None:
            raise self._errors[0]
        return self._winner

    async def _attempt(self, number: int) -> None:
        if number:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._failed[number - 1].wait(), number * HAPPY_EYEBALLS_DELAY_S)
        try:
            connected = await _connected(self._addresses[number])
        except OSError as error:
            self._errors.append(error)
            self._failed[number].set()
            return
        if self._winner is not None:
            connected.close()
            return
        self._winner = connected
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


async def _connected(address: Any) -> socket.socket:
    family, kind, protocol, _, place = address
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made


def _interleaved(addresses: list[Any]) -> list[Any]:
    """Return the addresses with the families in turn, beginning with the first one's."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    found: list[Any] = []
    while first or others:
        found += first[:1] + others[:1]
        first, others = first[1:], others[1:]
    return found
