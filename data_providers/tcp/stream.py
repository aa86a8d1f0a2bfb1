"""The server's side of a connection as a stream of bytes, without a task or its own buffer while it is idle."""

import asyncio

from epochal.state.errors import InternalError

READ_AHEAD_BYTES = 4 * 1024
"""Bytes of requests that are read while one is being answered, before the connection is read no further."""


class ServerStream(asyncio.BufferedProtocol):
    """Receives what a client asks, and waits until it takes what is sent.

    Args:
        scratch: memory that is used only inside a callback, and so may be shared by all streams of an event loop.
    """

    def __init__(self, scratch: memoryview) -> None:
        self._scratch = scratch
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._is_lost = False
        self._is_full = False
        self._arrival: asyncio.Future[None] | None = None
        self._departure: asyncio.Future[None] | None = None
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def transport(self) -> asyncio.Transport:
        """The connection."""
        if self._transport is None:
            raise InternalError("the stream is not connected")
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise InternalError("a TCP connection without a byte transport")
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._received += self._scratch[:nbytes]
        if len(self._received) >= READ_AHEAD_BYTES and self._arrival is None:
            self.transport.pause_reading()
        _wake(self._arrival)

    def eof_received(self) -> bool:
        self._is_over = True
        _wake(self._arrival)
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._is_over = self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        _wake(self._arrival)
        _wake(self._departure)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        _wake(self._departure)

    def has(self, count: int) -> bool:
        """Return whether so many bytes have arrived."""
        return len(self._received) >= count

    def peek(self, count: int) -> bytes:
        """Return the first bytes of what has arrived, and leave them."""
        return bytes(self._received[:count])

    def take(self, count: int) -> bytes:
        """Return the first bytes of what has arrived, and remove them."""
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def until(self, count: int, wait_s: float) -> None:
        """Return when so many bytes have arrived.

        Raises:
            TimeoutError: they have not in this time.
            ConnectionError: the connection ended before.
        """
        if self.has(count):
            return
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + wait_s
        if self._timer is None or self._timer.when() > self._due_s:
            self._set_timer()
        while not self.has(count):
            if self._is_over:
                raise ConnectionResetError("the client ended the connection")
            if not self.transport.is_reading():
                self.transport.resume_reading()
            self._arrival = loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None

    def _set_timer(self) -> None:
        """Look at the time when it is due. One timer serves many waits, most of which end long before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._arrival is None:
            return
        if self._arrival.done() or asyncio.get_running_loop().time() < self._due_s:
            self._set_timer()
        else:
            self._arrival.set_exception(TimeoutError("the client says nothing"))

    async def drain(self) -> None:
        """Return when the system has taken what was written. Raise `ConnectionError` if the connection ended."""
        while self._is_full and not self._is_lost:
            self._departure = asyncio.get_running_loop().create_future()
            try:
                await self._departure
            finally:
                self._departure = None
        if self._is_lost or self.transport.is_closing():
            raise ConnectionResetError("the connection has ended")


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
