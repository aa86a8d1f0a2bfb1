"""Sending to a client that may read slowly, or not at all: in pieces, at a minimum rate, within a time limit.

An answer from files is read piece by piece, each straight into the memory that it is sent from, header and all: while
it is sent it takes that memory, however large it is, and the pieces stay in the processor's cache on their way.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from data_providers.tcp.answers import SampleBytes
from data_providers.tcp.frames import HEADER_BYTES
from data_providers.tcp.limits import ServerLimits
from data_providers.tcp.stream import ServerStream
from state.errors import DataError

SEND_PIECE_BYTES = 256 * 1024
"""Bytes of an answer that are sent at a time; at most as many again wait in the connection's own buffer, a copy."""
PIECES_PER_TURN = 8
"""Pieces that a connection sends before others have their turn, where its client receives them at once."""
MAX_KEPT_BUFFERS = 16
"""Buffers that are kept for later answers; those of more answers under way are freed after use."""


class TooSlow(Exception):
    """The client does not receive an answer at the rate that it must."""


class AnswerBroken(Exception):
    """The rest of an answer cannot be read, after its first part was sent."""


class SendBuffers:
    """Buffers for the answers under way: the one used last is used first, so that it is in the processor's cache."""

    def __init__(self) -> None:
        self._kept: list[memoryview] = []

    @contextmanager
    def borrow(self) -> Iterator[memoryview]:
        """Yield a buffer for a header and `SEND_PIECE_BYTES`, which nobody else uses meanwhile."""
        buffer = self._kept.pop() if self._kept else memoryview(bytearray(HEADER_BYTES + SEND_PIECE_BYTES))
        yield buffer
        if len(self._kept) < MAX_KEPT_BUFFERS:  # not after an error: a connection may still hold it
            self._kept.append(buffer)


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

    def __init__(self, stream: ServerStream, limits: ServerLimits) -> None:
        self._stream = stream
        self._transport = stream.transport
        self._limits = limits
        self._answer: _Answer | None = None
        self._pieces_in_turn = 0
        self._transport.set_write_buffer_limits(high=0)

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes, and return when the system has taken all of them.

        Raises:
            TooSlow: the client receives them more slowly than the limits allow.
            ConnectionError: the connection ended.
        """
        view = memoryview(data)
        with self._under_way() as answer:
            for start in range(0, len(view), SEND_PIECE_BYTES):
                await self._send_piece(answer, view[start : start + SEND_PIECE_BYTES])

    async def send_samples(self, header: bytes, samples: SampleBytes, buffer: memoryview) -> None:
        """Send a header and the samples' bytes through the buffer, as `send`.

        Raises:
            DataError: the first bytes cannot be read, and nothing was sent.
            AnswerBroken: later ones cannot.
            TooSlow, ConnectionError: as `send`.
        """
        buffer[: len(header)] = header
        begin, held = 0, len(header)
        with self._under_way() as answer:
            while begin < samples.size_bytes:
                count = min(SEND_PIECE_BYTES, samples.size_bytes - begin)
                try:
                    if not samples.read_now(begin, buffer[held : held + count]):
                        await self._read_late(answer, samples, begin, buffer[held : held + count])
                except DataError as error:
                    if not begin:
                        raise
                    raise AnswerBroken(f"after {begin} of {samples.size_bytes} bytes: {error.message}") from error
                await self._send_piece(answer, buffer[: held + count])
                begin, held = begin + count, 0

    async def _read_late(self, answer: _Answer, samples: SampleBytes, begin: int, into: memoryview) -> None:
        """Read from the disk; the time that it takes is not the client's."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        await asyncio.to_thread(samples.read, begin, into)
        answer.started_s += loop.time() - asked_s

    @contextmanager
    def _under_way(self) -> Iterator[_Answer]:
        self._answer = answer = _Answer(asyncio.get_running_loop().time())
        try:
            yield answer
        except TimeoutError as error:
            raise TooSlow(f"{answer.sent_bytes} bytes") from error
        finally:
            self._answer = None

    async def _send_piece(self, answer: _Answer, piece: memoryview) -> None:
        self._transport.write(piece)
        if self._transport.get_write_buffer_size() or self._transport.is_closing():
            async with asyncio.timeout_at(answer.due_s(self._limits, self._limits.slow_after_s)):
                await self._stream.drain()
        answer.sent_bytes += len(piece)
        self._pieces_in_turn += 1
        if self._pieces_in_turn >= PIECES_PER_TURN:
            self._pieces_in_turn = 0
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
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection now, whatever its client has received."""
        self._transport.abort()
