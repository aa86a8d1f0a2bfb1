"""A server of one file over TLS that sends one range at a time, over HTTP/1.1, or over HTTP/2 as a test says."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from h2.settings import SettingCodes

from tests.support.servers.raw_http import raw_server

ETAG = '"first"'
FRAME_BYTES = 16_000


@dataclass(slots=True)
class Asked:
    """A request over HTTP/2. `attempt` counts those for the same first byte, from 1."""

    connection: "Http2Side"
    stream: int
    first: int
    stop: int
    attempt: int

    def head(self, **fields: str) -> None:
        """Send the head of the right answer, with other fields where they are given; "" leaves one out."""
        right = {
            "status": "206",
            "etag": ETAG,
            "content-range": f"bytes {self.first}-{self.stop - 1}/{len(self.connection.server.data)}",
            "content-length": str(self.stop - self.first),
        }
        named = {**right, **{name.replace("_", "-"): value for name, value in fields.items()}}
        status = named.pop("status")
        sent = [(":status", status), *((name, value) for name, value in named.items() if value)]
        self.connection.h2.send_headers(self.stream, sent)

    def body(self, first: int, stop: int, *, ends: bool = True) -> None:
        """Send the bytes `[first, stop)` of the file."""
        for start in range(first, stop, FRAME_BYTES):
            piece = self.connection.server.data[start : min(stop, start + FRAME_BYTES)]
            self.connection.h2.send_data(self.stream, piece)
        if ends:
            self.connection.h2.end_stream(self.stream)

    def all(self) -> None:
        """Send the right answer."""
        self.head()
        self.body(self.first, self.stop)


Behave = Callable[[Asked], Awaitable[None]]


@dataclass
class Http2Side:
    """A connection over HTTP/2, seen from the server."""

    server: "SingleRanges"
    writer: asyncio.StreamWriter
    h2: h2.connection.H2Connection

    def flush(self) -> None:
        """Send what is to be sent."""
        self.writer.write(self.h2.data_to_send())


@dataclass
class SingleRanges:
    """The server. `behave` answers a request over HTTP/2; without one, it is not chosen."""

    data: bytes
    behave: Behave | None = None
    settings: dict[SettingCodes, int] = field(default_factory=dict)
    sends_settings: bool = True
    asked_http1: int = 0
    asked_http2: int = 0
    connections_http2: int = 0
    fields: list[dict[str, str]] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        await (self._speak_2(reader, writer) if chosen == "h2" else self._speak_1(reader, writer))

    async def _speak_1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked_http1 += 1
            first, stop = _range(head)
            fields = f"ETag: {ETAG}\r\nContent-Range: bytes {first}-{stop - 1}/{len(self.data)}\r\n"
            writer.write(f"HTTP/1.1 206 x\r\n{fields}Content-Length: {stop - first}\r\n\r\n".encode())
            writer.write(self.data[first:stop])
            await writer.drain()

    async def _speak_2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.behave is not None
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        side = Http2Side(self, writer, h2.connection.H2Connection(config))
        self.connections_http2 += 1
        values = {SettingCodes.MAX_CONCURRENT_STREAMS: 128, **self.settings}
        side.h2.local_settings = h2.settings.Settings(client=False, initial_values=values)
        if self.sends_settings:
            side.h2.initiate_connection()
            side.flush()
        while piece := await reader.read(2**16):
            try:
                events = side.h2.receive_data(piece) if self.sends_settings else []
            except h2.exceptions.ProtocolError:
                return
            for event in events:
                if isinstance(event, h2.events.RequestReceived):
                    await self._answer(side, event)
            side.flush()
            await writer.drain()

    async def _answer(self, side: Http2Side, event: h2.events.RequestReceived) -> None:
        assert self.behave is not None
        self.asked_http2 += 1
        named = {str(name): str(value) for name, value in event.headers or ()}
        self.fields.append(named)
        first, stop = _range("Range: " + named["range"])
        self._attempts[first] = self._attempts.get(first, 0) + 1
        await self.behave(Asked(side, event.stream_id, first, stop, self._attempts[first]))


def _range(head: str) -> tuple[int, int]:
    found = re.search(r"bytes=(\d+)-(\d+)", head)
    assert found is not None
    return int(found[1]), int(found[2]) + 1


@asynccontextmanager
async def serving(server: SingleRanges, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The server's port."""
    context.set_alpn_protocols(["http/1.1"] if server.behave is None else ["h2", "http/1.1"])

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.speak(reader, writer)
        finally:
            writer.transport.abort()

    async with raw_server(speak, context) as port:
        yield port
