"""Sending to a client that may read slowly, or not at all: in pieces, at a minimum rate, within a time limit."""

import asyncio
from dataclasses import dataclass

from data_providers.tcp.limits import ServerLimits

SEND_PIECE_BYTES = 256 * 1024
"""Most bytes of an answer that wait in the connection's own buffer, which holds a copy of them."""


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
    """The sending half of a connection. Nothing stays in its buffer after `send`, so that it can be closed at once."""

    def __init__(self, writer: asyncio.StreamWriter, limits: ServerLimits) -> None:
        self._writer = writer
        self._limits = limits
        self._answer: _Answer | None = None
        writer.transport.set_write_buffer_limits(high=0)

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes, and return when the system has taken all of them.

        Raises:
            TooSlow: the client receives them more slowly than the limits allow.
            ConnectionError: the connection ended.
        """
        loop = asyncio.get_running_loop()
        self._answer = answer = _Answer(loop.time())
        view = memoryview(data)
        try:
            for start in range(0, len(view), SEND_PIECE_BYTES):
                piece = view[start : start + SEND_PIECE_BYTES]
                self._writer.write(piece)
                async with asyncio.timeout_at(answer.due_s(self._limits, self._limits.slow_after_s)):
                    await self._writer.drain()
                answer.sent_bytes += len(piece)
        except TimeoutError as error:
            raise TooSlow(f"{answer.sent_bytes} of {len(view)} bytes") from error
        finally:
            self._answer = None

    def is_slow_when_full(self) -> bool:
        """Return whether an answer is under way too slowly for a time in which others wait for its memory."""
        if self._answer is None:
            return False
        due_s = self._answer.due_s(self._limits, self._limits.slow_after_when_full_s)
        return asyncio.get_running_loop().time() > due_s

    def say(self, data: bytes) -> None:
        """Send a few last bytes as far as the system takes them at once."""
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    def abort(self) -> None:
        """Close the connection now, whatever its client has received."""
        self._writer.transport.abort()
