"""Arbitrary bytes as frames of the TCP data protocol: to a server's decoders, and to a client that waits for samples.

Nothing but `InvalidInput` may be raised, and nothing is written but the memory of the pieces that were asked for.
"""

import asyncio
from typing import Any

from epochal.data_providers.tcp.client_connection import ClientConnection, DataServerAddress, WantedPiece
from epochal.data_providers.tcp.frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameKind,
    Hello,
    Welcome,
    error_of,
    parse_get,
    parse_header,
)
from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.wire import parse_document

PIECES = (8, 4)
"""Lengths in bytes of the pieces that the client has asked for."""
GUARD_BYTES = 4
GUARD = 0xFF
MAX_STEP_BYTES = 32

_loop = asyncio.new_event_loop()


class Forgetful(asyncio.Transport):
    """A transport that keeps nothing of what is sent, and knows whether it was aborted."""

    def __init__(self) -> None:
        super().__init__({"sslcontext": "no socket of its own"})
        self.is_aborted = False

    def write(self, data: Any) -> None:
        """Forget it."""

    def abort(self) -> None:
        self.is_aborted = True


def fuzz_one(data: bytes) -> None:
    """Give the bytes to every decoder; the first one says in which pieces a client receives the others."""
    _decode(data)
    _loop.run_until_complete(_receive(data))


def _decode(data: bytes) -> None:
    at = 0
    while at + HEADER_BYTES <= len(data):
        try:
            header = parse_header(data[at : at + HEADER_BYTES])
        except InvalidInput:
            break
        assert header.length <= MAX_PAYLOAD_BYTES[header.kind]
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + header.length]
        _decode_payload(header.kind, payload)
        at += HEADER_BYTES + header.length
    for kind in FrameKind:
        _decode_payload(kind, data)


def _decode_payload(kind: FrameKind, payload: bytes) -> None:
    try:
        match kind:
            case FrameKind.HELLO:
                parse_document(Hello, payload)
            case FrameKind.WELCOME:
                parse_document(Welcome, payload)
            case FrameKind.GET:
                assert parse_get(payload).data_ids.start >= 0
            case FrameKind.ERROR:
                assert error_of(payload, "a server").message.isprintable()
    except InvalidInput:
        pass


async def _receive(data: bytes) -> None:
    connection, transport = ClientConnection(DataServerAddress("h", 1, "a-run")), Forgetful()
    connection.connection_made(transport)
    memory = bytearray([GUARD]) * (sum(PIECES) + GUARD_BYTES * (len(PIECES) + 1))
    pieces, at, wanted = [], GUARD_BYTES, set[int]()
    for number, length in enumerate(PIECES):
        pieces.append(WantedPiece(DataIds(number, number), memoryview(memory)[at : at + length]))
        wanted |= set(range(at, at + length))
        at += length + GUARD_BYTES
    call = connection.ask(pieces, 0)
    step = data[0] % MAX_STEP_BYTES + 1 if data else 1
    left = data[1:]
    while left and connection.lost is None:
        buffer = connection.get_buffer(-1)
        assert len(buffer), "a transport refuses an empty buffer"
        count = min(step, len(left), len(buffer))
        buffer[:count] = left[:count]
        left = left[count:]
        connection.buffer_updated(count)
    if connection.lost is not None:
        assert transport.is_aborted
        assert call.done.done()
    connection.connection_lost(None)
    for future in (call.done, connection.welcome):
        assert future.done()
        error = future.exception()
        assert error is None or isinstance(error, DataError)
    assert all(memory[place] == GUARD for place in range(len(memory)) if place not in wanted)
