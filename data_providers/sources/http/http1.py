"""One HTTP/1.1 connection: a request, the head of its answer, and a body that goes to its reader's buffers.

The rules kept here: the bytes of a large body are received into their destination, without a copy; a head, a silence
and an answer have bounds; after an exchange that did not end as it should, the connection is not used again, and no
byte is written to a destination any more. httptools (llhttp) parses heads and chunked bodies.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import httptools

from epochal.state.errors import DataError

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of an answer's head, interim answers included."""
SCRATCH_BYTES = 256 * 1024
"""Size of the buffer for heads and for bodies that go to several places; it stays in a core's own cache."""
FIRST_BYTES = 16 * 1024
"""Maximum number of bytes that are received at a time before the end of a head: what follows it is copied."""
DIRECT_BYTES = 64 * 1024
"""Minimum number of bytes that are received into their destination directly; fewer are copied, with what follows."""
SILENCE_TIMEOUT_S = 20.0
"""Maximum time without a byte of the answer."""
MAX_DISCARDED_BYTES = 64 * 1024
"""Maximum size of an unwanted body; a connection with a longer one is closed."""
MAX_FIELD_NAMES = 64  # that are remembered in lower case
_END_OF_HEAD = b"\r\n\r\n"
_SWITCHING, _OK = 101, 200
_WITHOUT_BODY = frozenset({204, 304})


class BrokenConnection(Exception):
    """The other side closed the connection, or sent what is not an answer.

    Attributes:
        is_unanswered: whether the connection ended before the first byte of an answer.
    """

    def __init__(self, message: str, *, is_unanswered: bool = False) -> None:
        super().__init__(message)
        self.is_unanswered = is_unanswered


class SilentConnection(BrokenConnection):
    """No byte came for `SILENCE_TIMEOUT_S`."""


@dataclass(frozen=True, slots=True)
class Head:
    """An answer's status and header fields, names in lower case; repeated ones are joined by commas."""

    status: int
    reason: str
    fields: Mapping[str, str]

    @property
    def length(self) -> int | None:
        """The body's size in bytes, if the head has it."""
        text = self.fields.get("content-length")
        return None if text is None or "transfer-encoding" in self.fields else int(text)


class Body(Protocol):
    """Takes the bytes of a body. Its methods may raise `DataError`, which ends the exchange."""

    def direct(self) -> memoryview | None:
        """Return where the next bytes may be written, or None if they are to be given to `feed`."""
        ...

    def wrote(self, count: int) -> None:
        """Note that so many bytes were written to the beginning of `direct()`."""
        ...

    def feed(self, data: memoryview) -> None:
        """Take the next bytes, which are valid only during the call."""
        ...

    def finish(self) -> None:
        """Note the body's end."""
        ...


class Discarded:
    """A body that nobody wants, of at most `MAX_DISCARDED_BYTES`."""

    def __init__(self) -> None:
        self._received = 0

    def direct(self) -> memoryview | None:
        """Return None."""
        return None

    def wrote(self, count: int) -> None:
        """Do nothing."""

    def feed(self, data: memoryview) -> None:
        """Count the bytes, and end the exchange at the limit."""
        self._received += len(data)
        if self._received > MAX_DISCARDED_BYTES:
            raise EnoughReceived

    def finish(self) -> None:
        """Do nothing."""


class EnoughReceived(Exception):
    """The rest of a body is not worth receiving."""


_field_name = lru_cache(MAX_FIELD_NAMES)(lambda name: name.decode("latin-1").lower())


class _Parser:
    """The callbacks of httptools while it parses one answer."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.reason = b""
        self.body: list[bytes] = []
        self.is_complete = False
        self.parser = httptools.HttpResponseParser(self)

    def on_status(self, status: bytes) -> None:
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = _field_name(name), value.decode("latin-1").strip()
        self.fields[key] = f"{self.fields[key]}, {text}" if key in self.fields else text

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True

    def head(self) -> Head:
        return Head(self.parser.get_status_code(), self.reason.decode("latin-1"), self.fields)


class HttpConnection(asyncio.BufferedProtocol):
    """A connection for one request at a time.

    Args:
        scratch: `SCRATCH_BYTES` of memory, which connections of one event loop may share: what is received into it is
            processed before the loop receives anything else.
    """

    def __init__(self, scratch: memoryview) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._scratch = scratch
        self._reset()
        self._is_lost = False
        self._watching: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done once the connection is closed."""
        self.is_reusable = False
        """Whether another request may be sent."""
        self.is_used = False
        """Whether an answer has come over this connection."""
        self.idle_since_s = 0.0
        self.answered_after_s = 0.0
        """Seconds from the last request to the first byte of its answer."""
        self.received_bytes = 0

    def _reset(self) -> None:
        self._answer: asyncio.Future[Head] | None = None
        self._choose: Callable[[Head], Body] | None = None
        self._head: Head | None = None
        self._body: Body | None = None
        self._left: int | None = None
        self._chunks: _Parser | None = None
        self._partial = b""
        self._heads = 0
        self._is_direct = self._is_tunnel = self._keeps = False

    async def exchange(self, request: bytes, choose: Callable[[Head], Body], *, is_tunnel: bool = False) -> Head:
        """Send a request, and return the head of its answer once the body is in the place that `choose` returned.

        Args:
            request: its bytes.
            choose: returns what takes the body; it may raise `DataError`.
            is_tunnel: whether this is a CONNECT, whose successful answer has no body.

        Raises:
            BrokenConnection: there is no whole answer.
            DataError: as raised by `choose` or by the body.
        """
        assert self._transport is not None
        self.is_reusable, self._is_tunnel = False, is_tunnel
        answer: asyncio.Future[Head] = self._loop.create_future()
        self._answer = answer
        self._choose = choose
        if self._is_lost:
            self._fail(BrokenConnection("the connection was closed", is_unanswered=True))
        self._asked_s = self._heard_s = self._loop.time()
        if self._watching is None:
            self._watching = self._loop.call_later(SILENCE_TIMEOUT_S, self._watch)
        try:
            self._transport.write(request)
            return await answer
        finally:
            if not self.is_reusable and not (is_tunnel and answer.done() and not answer.cancelled()):
                self.abort()
            self._reset()

    def _watch(self) -> None:
        """Fail an exchange under way if nothing is heard. One timer serves exchange after exchange."""
        self._watching = None
        if self._answer is None or self._answer.done():
            return
        left_s = self._heard_s + SILENCE_TIMEOUT_S - self._loop.time()
        if left_s <= 0:
            self._fail(SilentConnection("no byte came in time"))
        else:
            self._watching = self._loop.call_later(left_s, self._watch)

    def _lose(self) -> None:
        self.is_reusable, self._is_lost = False, True
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def attach(self, transport: asyncio.BaseTransport) -> None:
        """Use this transport from now on: TLS over the one before."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def transport(self) -> asyncio.Transport:
        """The connection's transport."""
        assert self._transport is not None
        return self._transport

    def abort(self) -> None:
        """Close the connection at once."""
        self._lose()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.attach(transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where asyncio is to receive the next bytes."""
        self._is_direct = False
        if self._head is None:
            return self._scratch[:FIRST_BYTES]
        if self._body is not None and self._chunks is None:
            direct = self._body.direct()
            if direct is not None and len(direct) >= DIRECT_BYTES:
                self._is_direct = True
                return direct if self._left is None else direct[: self._left]
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Process what came."""
        self._heard_s = self._loop.time()
        self.received_bytes += nbytes
        if self._answer is None or self._answer.done():  # not asked for, or nobody waits any more
            self.abort()
            return
        try:
            if self._is_direct:
                assert self._body is not None
                self._body.wrote(nbytes)
                self._count(nbytes)
            elif self._head is None:
                self._take_head(self._scratch[:nbytes])
            else:
                self._take_body(self._scratch[:nbytes])
        except EnoughReceived:
            self._end(keeps=False)
        except DataError as error:
            self._fail(error)
        except httptools.HttpParserError as error:
            self._fail(BrokenConnection(f"what came is not HTTP: {error}"))

    def eof_received(self) -> bool | None:
        """Note that the other side sends nothing more; the transport closes itself."""
        self.is_reusable = False
        if self._body is not None and self._left is None and self._chunks is None:
            self._end_of_body(keeps=False)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange under way."""
        if not self.closed.done():
            self.closed.set_result(None)
        self._lose()
        nothing_came = self._head is None and not self._partial and not self._heads
        reason = str(exc) if exc is not None else "the server closed the connection"
        self._fail(BrokenConnection(reason or type(exc).__name__, is_unanswered=nothing_came))

    # ------------------------------------------------------------------ the answer

    def _take_head(self, data: memoryview) -> None:
        """Look for the end of the head, and give what follows to the body."""
        while self._head is None and data:
            held = self._partial + bytes(data[: MAX_HEAD_BYTES + 1])
            end = held.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            is_whole = end >= len(_END_OF_HEAD)
            if self._heads + (end if is_whole else len(held)) > MAX_HEAD_BYTES:
                raise httptools.HttpParserError(f"a head of more than {MAX_HEAD_BYTES} bytes")
            if not is_whole:
                self._partial = held
                return
            data = data[end - len(self._partial) :]
            self._partial = b""
            self._heads += end
            parser = _Parser()
            with contextlib.suppress(httptools.HttpParserUpgrade):
                parser.parser.feed_data(held[:end])
            head = parser.head()
            if head.status == _SWITCHING:
                raise httptools.HttpParserError("the server switches to another protocol")
            if head.status >= _OK:  # others are interim answers
                self._head = head
                self._begin_body(parser, data)

    def _begin_body(self, parser: _Parser, rest: memoryview) -> None:
        head, choose = self._head, self._choose
        assert head is not None
        assert choose is not None
        self.is_used = True
        self.answered_after_s = self._heard_s - self._asked_s
        if self._is_tunnel and head.status // 100 == 2:
            if len(rest):
                raise httptools.HttpParserError("the proxy sent bytes of its own")
            self._end(keeps=False)
            return
        self._body = choose(head)
        self._keeps = parser.parser.should_keep_alive()
        if head.status in _WITHOUT_BODY:
            self._left = 0
        elif "transfer-encoding" in head.fields:
            self._chunks = parser
        else:
            self._left = head.length
            self._keeps = self._keeps and self._left is not None
        if self._left == 0:
            self._keeps = self._keeps and not len(rest)
            self._end_of_body(keeps=self._keeps)
        elif len(rest):
            self._take_body(rest)

    def _take_body(self, data: memoryview) -> None:
        assert self._body is not None
        if self._chunks is not None:
            self._take_chunks(self._chunks, data)
            return
        if self._left is not None and len(data) > self._left:
            self._keeps, data = False, data[: self._left]
        self._body.feed(data)
        self._count(len(data))

    def _take_chunks(self, parser: _Parser, data: memoryview) -> None:
        assert self._body is not None
        parser.parser.feed_data(data)
        for piece in parser.body:
            self._body.feed(memoryview(piece))
        parser.body.clear()
        if parser.is_complete:
            self._end_of_body(keeps=self._keeps)

    def _count(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            if not self._left:
                self._end_of_body(keeps=self._keeps)

    def _end_of_body(self, *, keeps: bool) -> None:
        try:
            if self._body is not None:
                self._body.finish()
        except DataError as error:
            self._fail(error)
        else:
            self._end(keeps=keeps)

    def _end(self, *, keeps: bool) -> None:
        if self._answer is not None and not self._answer.done():
            assert self._head is not None
            self.is_reusable = keeps and not self._is_lost
            self._answer.set_result(self._head)
            self._body = None

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._body = None
            self.abort()
