"""Sending to a client that may read slowly, or not at all: in pieces, at a minimum rate, within a time limit."""

import asyncio
import socket
from dataclasses import dataclass

from epochal.data_providers.tcp.server_limits import ServerLimits

SEND_PIECE_BYTES = 256 * 1024
"""Bytes of an answer that are sent at a time; at most as many again wait in the connection's own buffer, a copy."""
FIRST_PIECE_BYTES = 32 * 1024
"""The same of the first piece, which is copied to follow its header at once."""
UNSENT_BYTES = 512 * 1024
"""Bytes of an answer that the system takes before the network has room for them, where this can be set."""
TURN_BYTES = 2 * 1024**2
"""Bytes that a connection sends before others have their turn, where its client receives them at once."""


class TooSlow(Exception):
    """The client does not receive an answer at the rate that it must."""


@dataclass(slots=True)
class _Answer:
    """An answer under way: when its first byte was sent, and how many bytes the connection has taken since."""

    started_s: float
    sent_bytes: int = 0

    def due_s(self, limits: ServerLimits, slow_after_s: float) -> float:
        """Return when more than the bytes that were sent must have been sent."""
        allowed_s = slow_after_s + self.sent_bytes / limits.least_bytes_per_s
        return self.started_s + min(limits.send_timeout_s, allowed_s)


class PacedWriter:
    """The sending half of a connection. Nothing stays in its buffer after `send`, so that it can be closed at once.

    Args:
        writer: of the connection.
        limits: bound what a client may delay.
    """

    def __init__(self, writer: asyncio.StreamWriter, limits: ServerLimits) -> None:
        self._writer = writer
        self._transport = writer.transport
        self._limits = limits
        self._answer: _Answer | None = None
        self._bytes_in_turn = 0
        self._transport.set_write_buffer_limits(high=0)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    async def send(self, head: bytes, body: memoryview | bytes = b"") -> None:
        """Send a head and a body, and return when the system has taken all of them.

        Raises:
            TooSlow: the client receives them more slowly than the limits allow.
            ConnectionError: the connection ended.
        """
        self._answer = answer = _Answer(asyncio.get_running_loop().time())
        try:
            view = memoryview(body)
            await self._send_piece(answer, head + view[:FIRST_PIECE_BYTES])
            for start in range(FIRST_PIECE_BYTES, len(view), SEND_PIECE_BYTES):
                await self._send_piece(answer, view[start : start + SEND_PIECE_BYTES])
        except TimeoutError as error:
            raise TooSlow(f"{answer.sent_bytes} bytes") from error
        finally:
            self._answer = None

    async def _send_piece(self, answer: _Answer, piece: bytes | memoryview) -> None:
        self._writer.write(piece)
        if self._transport.get_write_buffer_size():
            async with asyncio.timeout_at(answer.due_s(self._limits, self._limits.slow_after_s)):
                await self._writer.drain()
        if self._transport.is_closing():
            raise ConnectionResetError("the connection has ended")
        answer.sent_bytes += len(piece)
        self._bytes_in_turn += len(piece)
        if self._bytes_in_turn >= TURN_BYTES:
            self._bytes_in_turn = 0
            await asyncio.sleep(0)

    def is_slow_when_full(self) -> bool:
        """Return whether an answer is under way too slowly for a time in which others wait for its memory."""
        if self._answer is None:
            return False
        due_s = self._answer.due_s(self._limits, self._limits.slow_after_when_full_s)
        return asyncio.get_running_loop().time() > due_s

    def say(self, data: bytes) -> None:
        """Send a few last bytes as far as the system takes them at once."""
        if not self._transport.is_closing():
            self._writer.write(data)

    def close(self) -> None:
        """Close the connection once what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection now, whatever its client has received."""
        self._transport.abort()
