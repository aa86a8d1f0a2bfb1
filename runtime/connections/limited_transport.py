"""A connection of asyncio whose bytes wait for the limits of `runtime/connections/bandwidth.py`.

It lies between a transport, over TLS or not, and the protocol that uses it, and reads no more than a piece at a time:
what has to wait stays in the system's buffers, which are kept small, so that the sender slows down.

The rules kept here: a byte that arrives is passed on at once, and the next ones wait; a byte that is sent waits first.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Any

from epochal.runtime.connections.bandwidth import Bandwidth, RateLimit, present_limits

HIGH_WATER_BYTES = 64 * 1024
"""Bytes that wait to be sent before their writer has to wait."""
BUFFER_S = 0.25
"""Time of a limit for whose bytes the system's buffers of a connection have room."""
MIN_BUFFER_BYTES, MAX_BUFFER_BYTES = 32 * 1024, 4 * 1024 * 1024


def limited(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
    """Return what the protocol of a new connection is to use instead of its transport: itself without limits.

    Args:
        transport: of the connection, over which nothing was sent yet.
        protocol: of the connection.
    """
    limits = present_limits()
    return transport if limits is None else _LimitedTransport(transport, protocol, limits)


class _LimitedTransport(asyncio.Transport):
    """The transport that the protocol sees; `_Arriving` is the protocol that the transport sees."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol, limits: Bandwidth) -> None:
        super().__init__()
        self._transport, self._protocol = transport, protocol
        self._upload = limits.upload
        self._waiting: bytearray = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._is_full = self._is_blocked = self._is_closing = False
        self._arriving = _Arriving(self, transport, protocol, limits.download)
        transport.set_protocol(self._arriving)
        _keep_buffers_small(transport, limits)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._upload is None:
            self._transport.write(data)
            return
        if self._is_closing or self._transport.is_closing():
            return
        self._waiting += data
        self._send()
        if len(self._waiting) > HIGH_WATER_BYTES and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _send(self) -> None:
        """Send pieces until one has to wait."""
        assert self._upload is not None
        while self._waiting and self._timer is None and not self._is_blocked:
            piece = bytes(self._waiting[: self._upload.piece_bytes])
            loop = asyncio.get_running_loop()
            delay_s = self._upload.reserve(len(piece), loop.time())
            if delay_s:
                self._timer = loop.call_later(delay_s, self._send_reserved, len(piece))
            else:
                self._pass_on(len(piece))
        if self._is_closing and not self._waiting:
            self._transport.close()
        if self._is_full and len(self._waiting) <= HIGH_WATER_BYTES // 2 and not self._is_blocked:
            self._is_full = False
            self._protocol.resume_writing()

    def _send_reserved(self, count: int) -> None:
        self._timer = None
        self._pass_on(count)
        self._send()

    def _pass_on(self, count: int) -> None:
        piece = bytes(self._waiting[:count])
        del self._waiting[:count]
        self._transport.write(piece)

    def block(self, *, is_blocked: bool) -> None:
        """Send nothing while the transport itself cannot take more."""
        if self._upload is None:
            (self._protocol.pause_writing if is_blocked else self._protocol.resume_writing)()
            return
        self._is_blocked = is_blocked
        if not is_blocked:
            self._send()

    def forget(self) -> None:
        """Send nothing any more, because the connection has ended."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def pause_reading(self) -> None:
        self._arriving.hold(is_held=True)

    def resume_reading(self) -> None:
        self._arriving.hold(is_held=False)

    def close(self) -> None:
        self._is_closing = True
        if not self._waiting:
            self._transport.close()

    def abort(self) -> None:
        self.forget()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return len(self._waiting) + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class _Arriving(asyncio.BufferedProtocol):
    """Receives the bytes of a transport for a protocol of either kind."""

    def __init__(
        self,
        outer: _LimitedTransport,
        transport: asyncio.Transport,
        protocol: asyncio.BaseProtocol,
        download: RateLimit | None,
    ) -> None:
        self._outer, self._transport, self._download = outer, transport, download
        self._protocol = protocol
        self._piece = bytearray(HIGH_WATER_BYTES if download is None else download.piece_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False

    def get_buffer(self, sizehint: int) -> memoryview:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            return memoryview(self._protocol.get_buffer(sizehint))[: len(self._piece)]
        return memoryview(self._piece)

    def buffer_updated(self, nbytes: int) -> None:
        if self._download is not None:
            loop = asyncio.get_running_loop()
            delay_s = self._download.reserve(nbytes, loop.time())
            if delay_s:
                self._timer = loop.call_later(delay_s, self._go_on)
                self._follow()
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.buffer_updated(nbytes)
        else:
            self._protocol.data_received(bytes(memoryview(self._piece)[:nbytes]))  # type: ignore[attr-defined]

    def _go_on(self) -> None:
        self._timer = None
        self._follow()

    def hold(self, *, is_held: bool) -> None:
        """Read nothing while the protocol does not want more."""
        self._is_held = is_held
        self._follow()

    def _follow(self) -> None:
        if not self._transport.is_closing():
            pauses = self._is_held or self._timer is not None
            (self._transport.pause_reading if pauses else self._transport.resume_reading)()

    def eof_received(self) -> bool | None:
        found: bool | None = self._protocol.eof_received()  # type: ignore[attr-defined]
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._outer.forget()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._outer.block(is_blocked=True)

    def resume_writing(self) -> None:
        self._outer.block(is_blocked=False)


def _keep_buffers_small(transport: asyncio.Transport, limits: Bandwidth) -> None:
    """Leave room for no more of a limit than `BUFFER_S` in the system's buffers, where they can be set."""
    found = transport.get_extra_info("socket")
    for option, limit in ((socket.SO_RCVBUF, limits.download), (socket.SO_SNDBUF, limits.upload)):
        if limit is not None and found is not None:
            size = max(MIN_BUFFER_BYTES, min(MAX_BUFFER_BYTES, int(limit.bytes_per_s * BUFFER_S)))
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, option, size)
