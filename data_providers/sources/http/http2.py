"""One HTTP/2 connection (RFC 9113): several requests at a time, and bodies that go where their readers say.

The rules kept here: what one answer does wrong ends its stream, and what breaks the protocol ends the connection; a
silence, the streams at a time, the windows, a head, and frames that bring nothing have bounds; after an exchange has
ended, no byte is written to its destination any more. `h2` keeps the protocol's state.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import httpx

from epochal.data_providers.sources.http.http1 import (
    MAX_HEAD_BYTES,
    SILENCE_TIMEOUT_S,
    Body,
    BrokenConnection,
    EnoughReceived,
    Head,
    SilentConnection,
)
from epochal.data_providers.sources.http.http2_frames import MAX_FRAME_BYTES, Frames, GoAway, Violation
from epochal.data_providers.sources.http.target import Target
from epochal.state.errors import DataError

MAX_STREAMS = 64
"""Maximum number of requests at a time; a server may allow fewer."""
STREAM_WINDOW_BYTES = 4 * 1024**2
"""Maximum bytes of one answer under way: from 100 ms away, 40 MB/s."""
CONNECTION_WINDOW_BYTES = 16 * 1024**2
"""Maximum bytes of all answers under way. They go to their destinations, so none is held."""
MAX_UNSENT_BYTES = 1024**2
"""Maximum number of bytes that wait to be sent to a server that does not read."""
_MAX_LENGTH_DIGITS = 18
_OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"})


class Http1Required(BrokenConnection):
    """The server answers this request over HTTP/1.1 only."""


@dataclass(slots=True)
class _Stream:
    """One exchange under way."""

    answer: asyncio.Future[Head]
    choose: Callable[[Head], Body]
    head: Head | None = None
    body: Body | None = None


def request_head(target: Target, fields: str) -> list[tuple[str, str]]:
    """Return the head of a GET as HTTP/2 has it, without fields of one connection (RFC 9113, 8.2.2).

    Args:
        target: what is requested.
        fields: header fields, each with its line end.
    """
    lines = (line.partition(": ") for line in fields.splitlines())
    others = [(name.lower(), value) for name, _, value in lines]
    return [
        (":method", "GET"),
        (":scheme", target.origin.scheme),
        (":authority", target.origin.netloc),
        (":path", target.path),
        *(field for field in others if field[0] not in _OF_ONE_CONNECTION),
    ]


class Http2Connection(asyncio.Protocol):
    """A connection for several requests at a time.

    Args:
        received: called with the number of bytes that came.
    """

    def __init__(self, received: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._transport: asyncio.Transport | None = None
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._streams: dict[int, _Stream] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._watching: asyncio.TimerHandle | None = None
        self._frames = Frames()
        self._heard_s = self._loop.time()
        self._is_ending = False
        self._failure: BrokenConnection | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done once the connection is closed."""

    @property
    def is_open(self) -> bool:
        """Whether another request may be sent."""
        return not self._is_ending

    @property
    def is_idle(self) -> bool:
        """Whether no exchange is under way."""
        return not self._streams and not self._waiting

    @property
    def idle_s(self) -> float:
        """Seconds since anything came that brought an answer further."""
        return self._loop.time() - self._heard_s

    async def ready(self) -> None:
        """Wait for the server's settings. Raise `BrokenConnection` if what it speaks is not HTTP/2."""
        await self._ready

    async def exchange(self, head: Sequence[tuple[str, str]], choose: Callable[[Head], Body]) -> Head:
        """Send a request, and return the head of its answer once the body is in the place that `choose` returned.

        Args:
            head: of `request_head`.
            choose: returns what takes the body; it may raise `DataError`.

        Raises:
            BrokenConnection: there is no whole answer; `is_unanswered` if the server did not begin one.
            DataError: as raised by `choose` or by the body.
        """
        self._watch()
        await self._turn()
        stream = _Stream(self._loop.create_future(), choose)
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, head, end_stream=True)
        except h2.exceptions.ProtocolError as error:
            self._is_ending = True
            raise BrokenConnection(f"the request cannot be sent: {type(error).__name__}", is_unanswered=True) from error
        self._streams[number] = stream
        try:
            self._flush()
            return await stream.answer
        finally:
            if self._streams.pop(number, None) is not None:
                self._reset(number)
            self._wake()

    async def _turn(self) -> None:
        """Wait until one more stream may be opened."""
        while not self._is_ending and len(self._streams) >= self._most_streams():
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
        if isinstance(self._failure, SilentConnection):
            raise type(self._failure)(str(self._failure))
        if self._is_ending:
            raise BrokenConnection("the server takes no further requests over this connection", is_unanswered=True)

    def _most_streams(self) -> int:
        return min(MAX_STREAMS, self._h2.remote_settings.max_concurrent_streams)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        if self._is_ending and not self._streams:
            self.abort()

    def _watch(self) -> None:
        """End the connection if nothing comes in time while an exchange is under way."""
        if self.is_idle:
            self._heard_s = self._loop.time()
        if self._watching is None:
            self._watching = self._loop.call_later(SILENCE_TIMEOUT_S, self._look)

    def _look(self) -> None:
        self._watching = None
        if self.is_idle:
            return
        left_s = self._heard_s + SILENCE_TIMEOUT_S - self._loop.time()
        if left_s <= 0:
            self._fail(SilentConnection("no byte came in time"))
        else:
            self._watching = self._loop.call_later(left_s, self._look)

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the beginning of the connection: settings and windows."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        codes = h2.settings.SettingCodes
        mine = {
            codes.ENABLE_PUSH: 0,
            codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            codes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            codes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
        }
        self._h2.local_settings = h2.settings.Settings(client=True, initial_values=mine)
        self._h2.max_inbound_frame_size = MAX_FRAME_BYTES
        self._h2.decoder.max_header_list_size = MAX_HEAD_BYTES
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - self._h2.inbound_flow_control_window)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Process what came."""
        self._received(len(data))
        taken: dict[int, int] = {}
        try:
            for piece in self._frames.take(data):
                if isinstance(piece, GoAway):
                    self._go_away(piece)
                    continue
                for event in self._h2.receive_data(piece):
                    self._take(event, taken)
            for number, count in taken.items():
                self._h2.acknowledge_received_data(count, number)
        except (h2.exceptions.H2Error, ValueError) as error:
            # The reason may repeat what was sent, a secret place among it.
            shown = str(error) if isinstance(error, Violation) else type(error).__name__
            self._fail(BrokenConnection(f"what came is not HTTP/2: {shown}"))
        else:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchanges under way."""
        reason = str(exc) if exc is not None else "the server closed the connection"
        self._fail(BrokenConnection(reason or type(exc).__name__), is_lost=True)
        if self._watching is not None:
            self._watching.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    # ------------------------------------------------------------------ frames

    def _go_away(self, goodbye: GoAway) -> None:
        """Stop sending requests; those after the last one that the server names were not begun."""
        self._is_ending = True
        refused = BrokenConnection("the server ended the connection before the request", is_unanswered=True)
        for number in [number for number in self._streams if number > goodbye.last_stream]:
            self._end(number, refused)
        self._wake()

    def _take(self, event: h2.events.Event, taken: dict[int, int]) -> None:
        if isinstance(event, h2.events.DataReceived):
            taken[event.stream_id] = taken.get(event.stream_id, 0) + (event.flow_controlled_length or 0)
            stream = self._streams.get(event.stream_id)
            if stream is not None and event.data:
                self._progress()
                if stream.body is None:
                    raise Violation("a body without a head")
                self._give(event.stream_id, stream.body.feed, memoryview(event.data))
        elif isinstance(event, h2.events.ResponseReceived):
            self._progress()
            self._begin_body(event.stream_id, event.headers or ())
        elif isinstance(event, h2.events.StreamEnded):
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                self._progress()
                self._finish(event.stream_id, stream)
        elif isinstance(event, h2.events.StreamReset):
            self._end(event.stream_id, _reset_error(event.error_code))
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            if not self._ready.done():
                self._ready.set_result(None)
            self._wake()

    def _progress(self) -> None:
        self._heard_s = self._loop.time()
        self._frames.progressed()

    def _begin_body(self, number: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        named: dict[str, str] = {}
        for raw_name, raw_value in fields:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1").strip()
            named[name] = f"{named[name]}, {value}" if name in named else value
        length = named.get("content-length", "0")
        if not length.isdecimal() or len(length) > _MAX_LENGTH_DIGITS:
            raise Violation("an invalid length")
        status = int(named.pop(":status"))
        stream.head = Head(status, httpx.codes.get_reason_phrase(status), named)
        try:
            stream.body = stream.choose(stream.head)
        except DataError as error:
            self._end(number, error, resets=True)

    def _give(self, number: int, feed: Callable[[memoryview], None], data: memoryview) -> None:
        try:
            feed(data)
        except EnoughReceived:
            self._end(number, None, resets=True)
        except DataError as error:
            self._end(number, error, resets=True)

    def _finish(self, number: int, stream: _Stream) -> None:
        if stream.body is None:
            raise Violation("an answer without a head")
        try:
            stream.body.finish()
        except DataError as error:
            self._end(number, error)
        else:
            self._end(number, None)

    def _end(self, number: int, error: Exception | None, *, resets: bool = False) -> None:
        """End an exchange, and let go of its destination."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        stream.body = None
        if resets:
            self._reset(number)
        if stream.answer.done():
            return
        if error is not None:
            stream.answer.set_exception(error)
        else:
            assert stream.head is not None
            stream.answer.set_result(stream.head)

    def _reset(self, number: int) -> None:
        try:
            self._h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
        except h2.exceptions.H2Error:  # it is over already
            return
        self._flush()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if self._transport is None or self._transport.is_closing() or not data:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._fail(BrokenConnection("the server does not read"))

    def _fail(self, error: BrokenConnection, *, is_lost: bool = False) -> None:
        """End the connection and every exchange; in one that is only lost, those without a head were not answered."""
        self._is_ending = True
        kind = type(error)
        for number, stream in list(self._streams.items()):
            self._end(number, kind(str(error), is_unanswered=is_lost and stream.head is None))
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting
        self._failure = self._failure or error
        self._wake()
        self.abort()


def _reset_error(code: h2.errors.ErrorCodes | int | None) -> BrokenConnection:
    if code == h2.errors.ErrorCodes.REFUSED_STREAM:
        return BrokenConnection("the server refused the stream", is_unanswered=True)
    if code == h2.errors.ErrorCodes.HTTP_1_1_REQUIRED:
        return Http1Required("the server answers over HTTP/1.1 only")
    name = code.name if isinstance(code, h2.errors.ErrorCodes) else f"code {code}"
    return BrokenConnection(f"the server reset the stream: {name}")
