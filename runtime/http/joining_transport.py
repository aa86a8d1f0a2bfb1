"""A transport for HTTP servers that sends the head of a response together with the first piece of its body.

The server writes them one after the other. Sent apart, each costs a system call here, and a wake-up at the receiver.
"""

import asyncio
from typing import Any

MAX_JOINED_BYTES = 64 * 1024
"""Maximum length of a piece that is copied behind a head; a longer one is sent apart."""
_HEAD_STARTS = b"HTTP/"


class JoiningTransport(asyncio.Transport):
    """Passes everything on to another transport; a response's head waits until the loop's next iteration at most."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them for a moment if they begin a response."""
        if self._head:
            if len(data) <= MAX_JOINED_BYTES:
                data, self._head = self._head + bytes(data), b""
            self._send_head()
        elif bytes(data[: len(_HEAD_STARTS)]) == _HEAD_STARTS:
            self._head = bytes(data)
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def flushed(self) -> asyncio.Transport:
        """Send what waits here, and return the transport that everything is passed on to."""
        self._send_head()
        return self._transport

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that were written and have not left the process."""
        return len(self._head) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """End the connection once everything is sent."""
        self._send_head()
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._head = b""
        self._transport.abort()

    def let_go(self) -> None:
        """Break the reference cycle in which asyncio's transports end up, so that one that is lost is freed at once."""
        if getattr(self._transport, "_read_ready_cb", None) is not None:  # its own method, bound (until Python 3.12)
            self._transport._read_ready_cb = None  # type: ignore[attr-defined]

    def is_closing(self) -> bool:
        """Return whether the connection ends or has ended."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the answer of the wrapped transport."""
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol receive."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that receives."""
        return self._transport.get_protocol()

    def pause_reading(self) -> None:
        """Receive nothing for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Return whether bytes are received."""
        return self._transport.is_reading()
