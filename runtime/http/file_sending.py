"""Sends parts of files over a connection of a server, without reading them into the process."""

import asyncio
import os
from dataclasses import dataclass


def can_send_files(transport: asyncio.Transport) -> bool:
    """Return whether the system can send files over the connection: not where they must be encrypted first."""
    return transport.get_extra_info("sslcontext") is None and hasattr(os, "sendfile")


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """An open file, as the event loop wants to see one."""

    descriptor: int

    def fileno(self) -> int:
        return self.descriptor


class FileSending:
    """Sends parts of files over one connection, one after the other."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._under_way: asyncio.Task[int] | None = None

    async def send(self, descriptor: int, start: int, count: int) -> None:
        """Send so many bytes of an open file, from the place `start` on, after everything that was written before.

        Raises:
            OSError: the connection has ended, or the file is shorter.
        """
        transport, loop = self._transport, asyncio.get_running_loop()
        if transport.is_closing():
            raise ConnectionResetError("the connection is closing")
        sending = loop.create_task(
            loop.sendfile(transport, _Descriptor(descriptor), start, count, fallback=False)  # type: ignore[arg-type]
        )
        self._under_way = sending
        try:
            await asyncio.wait((sending,))
        finally:
            self._under_way = None
            if not sending.done():
                sending.cancel()
                await asyncio.wait((sending,))
        if sending.cancelled():
            raise ConnectionResetError("the connection has ended")
        if sending.result() < count:
            raise OSError("the file is shorter than it was")

    def end(self) -> None:
        """Give up the part that is under way: the connection has ended."""
        if self._under_way is not None:
            self._under_way.cancel()
