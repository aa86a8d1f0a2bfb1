"""Sending to a client that may read slowly, or not at all: in pieces, at a minimum rate, within a time limit.

What an answer from files has in the system's memory is sent from there, by the system, without a copy in this process.
The rest is read piece by piece, each straight into the memory that it is sent from, header and all: while it is sent
it takes that memory, however large it is, and the pieces stay in the processor's cache on their way.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochal.data_providers.tcp.answer_pieces import SampleBytes
from epochal.data_providers.tcp.frames import HEADER_BYTES
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.data_providers.tcp.stream import ServerStream
from epochal.state.errors import DataError

SEND_PIECE_BYTES = 256 * 1024
"""Bytes of an answer that are sent at a time; at most as many again wait in the connection's own buffer, a copy."""
DIRECT_BYTES = 1024**2
"""The same of an answer that lies in the system's memory. Fewer, larger ones cost less."""
LEAST_DIRECT_BYTES = 128 * 1024
"""A smaller answer is read and sent in one piece."""
READ_BYTES = 16 * 1024
"""Bytes that are read at the end of an answer from the system's memory, and where its connection is full."""
TURN_BYTES = 2 * 1024**2
"""Bytes that a connection sends before others have their turn, where its client receives them at once."""
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
    """The sending half of a connection. Nothing stays in its buffer after `send`, so that it can be closed at once.

    Args:
        stream: of the connection.
        limits: bound what a client may delay.
        direct: the connection's socket, where bytes may be sent past the stream; None over TLS.
    """

    def __init__(self, stream: ServerStream, limits: ServerLimits, direct: socket.socket | None = None) -> None:
        self._stream = stream
        self._transport = stream.transport
        self._limits = limits
        self._direct = direct
        self._answer: _Answer | None = None
        self._bytes_in_turn = 0
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
        """Send a header and the samples' bytes, as `send`; what must be read is read into the buffer.

        Raises:
            DataError: the first bytes cannot be read, and nothing was sent.
            AnswerBroken: later ones cannot.
            TooSlow, ConnectionError: as `send`.
        """
        begin, size_bytes = 0, samples.size_bytes
        is_direct = self._direct is not None and size_bytes >= LEAST_DIRECT_BYTES
        with self._under_way() as answer:
            try:
                while begin < size_bytes:
                    count = SEND_PIECE_BYTES
                    if is_direct:
                        header, begin = await self._send_from_memory(answer, header, samples, begin)
                        if samples.at_hand(begin + READ_BYTES, 1):
                            count = READ_BYTES
                    count = min(count, size_bytes - begin)
                    if is_direct and begin + count == size_bytes:
                        _check(samples)
                    held = len(header)
                    buffer[:held] = header
                    if not samples.read_now(begin, buffer[held : held + count]):
                        await self._read_late(answer, samples, begin, buffer[held : held + count])
                    await self._send_piece(answer, buffer[: held + count])
                    header, begin = b"", begin + count
            except DataError as error:
                if not answer.sent_bytes:
                    raise
                raise AnswerBroken(f"after {begin} of {size_bytes} bytes: {error.message}") from error

    async def _send_from_memory(
        self, answer: _Answer, header: bytes, samples: SampleBytes, begin: int
    ) -> tuple[bytes, int]:
        """Send what the system has and takes at once, but for the last bytes; return what is left of the header, and
        where the bytes begin that are left.

        After it something must be written to the stream, which knows when the connection takes more, or has ended. The
        last bytes are left for a read, which follows a look at the files' versions: a client never has a whole answer
        from a file that was changed while it was sent.
        """
        while self._direct is not None and not self._transport.is_closing():
            wanted_bytes = min(DIRECT_BYTES, samples.size_bytes - READ_BYTES - begin)
            views = samples.at_hand(begin, wanted_bytes) if wanted_bytes > 0 else ()
            if not views:
                break
            try:
                sent = self._direct.sendmsg([header, *views])
            except OSError:  # full, ended, or a file was cut: the stream or a read says which
                break
            answer.sent_bytes += sent
            count = len(header) + sum(map(len, views))
            begin += max(sent - len(header), 0)
            header = header[sent:]
            if sent < count:
                break
            await self._count_in_turn(sent)
        return header, begin

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
        await self._count_in_turn(len(piece))

    async def _count_in_turn(self, sent_bytes: int) -> None:
        """Let others have their turn after some bytes."""
        self._bytes_in_turn += sent_bytes
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
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection now, whatever its client has received."""
        self._transport.abort()


def _check(samples: SampleBytes) -> None:
    """Raise `AnswerBroken` if a file has changed since bytes of it were sent, or offered to the system."""
    try:
        samples.check()
    except DataError as error:
        raise AnswerBroken(error.message) from error
