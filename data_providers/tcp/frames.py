"""The frames of the TCP data protocol, version 3 (`docs/data-protocol.md` is its specification).

A connection carries frames both ways. Each begins with a header of 12 bytes, little-endian:

| bytes | field |
|---|---|
| 2 | `EP` |
| 1 | the protocol's version |
| 1 | the kind of the frame |
| 4 | the request's number, chosen by the client; an answer repeats it |
| 4 | the payload's length in bytes |

The client begins with `HELLO` (JSON: run id and ticket); the server answers `WELCOME` (JSON: its dataset) or
`ERROR`. Then the client sends any number of `GET`s (three unsigned 64-bit integers: the version of the run document
that it follows, the first and the last data index) without waiting, and the server answers them in order, each with
`SAMPLES`, whose payload is the tokens' own bytes (of samples of any length: as `payloads.py` has it), or with `ERROR`
(JSON: kind and reason). An `ERROR` with request
number 0 is about the connection, which then ends: the client asks another server. The rules kept here: a payload's
length is checked against its kind's bound before a byte of it is read; and the request's number is 0 in frames about
the connection, and in no other.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from epochal.data_providers.protocol import (
    MAX_SEQUENCE_BYTES,
    CorruptData,
    DataErrorKind,
    OutOfRange,
    Rejected,
    SourceUnavailable,
)
from epochal.state.documents import HexSha256
from epochal.state.errors import DataError, InvalidDocument
from epochal.state.intervals import MAX_INDEX, DataIds
from epochal.state.messages.requests import MAX_MESSAGE_CHARS
from epochal.state.text.visible import visible
from epochal.state.wire import canonical_json, parse_document
from epochal.state.wire_document import WireDocument

PROTOCOL_VERSION = 3
HEADER = struct.Struct("<2sBBII")
HEADER_BYTES = HEADER.size
MAX_JSON_BYTES = 16 * 1024
MAX_SAMPLES_BYTES = max(4 * 1024**2, MAX_SEQUENCE_BYTES)
"""Maximum payload of tokens; a client splits larger calls into several requests."""

CONNECTION_REQUEST = 0
"""The request number of frames that are about the connection."""

MAX_REQUEST_NUMBER = 2**32 - 1
MAX_TICKET_CHARS = 8 * 1024

ANY_VERSION = 0
"""The document version of a request that names none."""

Reason: TypeAlias = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
"""A sentence for a person. The peer wrote it: show it as `visible` alone."""

_MAGIC = b"EP"
_GET = struct.Struct("<QQQ")


class FrameKind(IntEnum):
    """The kinds of frames."""

    HELLO = 1
    WELCOME = 2
    GET = 3
    SAMPLES = 4
    ERROR = 5


OF_A_REQUEST = frozenset({FrameKind.GET, FrameKind.SAMPLES})
"""The kinds that have the number of a request, from 1 on; an `ERROR` may have one, and all others have 0."""

MAX_PAYLOAD_BYTES = {
    FrameKind.HELLO: MAX_JSON_BYTES,
    FrameKind.WELCOME: MAX_JSON_BYTES,
    FrameKind.GET: _GET.size,
    FrameKind.SAMPLES: MAX_SAMPLES_BYTES,
    FrameKind.ERROR: MAX_JSON_BYTES,
}


class AnotherVersion(InvalidDocument):
    """The peer speaks another version of the protocol."""


class Get(NamedTuple):
    """A request for samples; `version` is that of the run document which the client follows, or `ANY_VERSION`."""

    data_ids: DataIds
    version: int


class FrameHeader(NamedTuple):
    """A header that was checked; `length` is the payload's, in bytes."""

    kind: FrameKind
    request: int
    length: int


@dataclass(frozen=True, slots=True)
class Hello(WireDocument):
    """The client's first message: its run, and its ticket from the coordinator."""

    run_id: Annotated[str, Field(max_length=256)]
    ticket: Annotated[str, Field(max_length=MAX_TICKET_CHARS)]


@dataclass(frozen=True, slots=True)
class Welcome(WireDocument):
    """The dataset that the server serves, as `DataProvider` and `DatasetSpec` describe it.

    Attributes:
        token_size_bytes, sequence_length: of every sample; None where samples have any length.
        mean_bytes: about the size of a sample of any length; None where all have the same.
    """

    fingerprint: HexSha256
    token_size_bytes: Annotated[int, Field(ge=2, le=4, multiple_of=2)] | None
    sequence_length: Annotated[int, Field(ge=1, le=MAX_SEQUENCE_BYTES // 2)] | None
    sequence_count: Annotated[int, Field(ge=1, le=MAX_INDEX)] | None
    mean_bytes: Annotated[int, Field(ge=1, le=MAX_INDEX)] | None = None


@dataclass(frozen=True, slots=True)
class DataFailure(WireDocument):
    """The reason why a request or a connection failed: a `DataError`'s kind and message."""

    kind: DataErrorKind
    reason: Reason


def frame_header(kind: FrameKind, request: int, length: int) -> bytes:
    """Return the 12 bytes that announce a payload of `length` bytes."""
    return HEADER.pack(_MAGIC, PROTOCOL_VERSION, kind, request, length)


def parse_header(header: bytes | bytearray | memoryview) -> FrameHeader:
    """Parse a header.

    Raises:
        AnotherVersion: the peer speaks another version of the protocol.
        InvalidDocument: it speaks another protocol, or the payload is above its kind's bound, or the request's number
            is not one of its kind; the peer's fault.
    """
    magic, version, kind, request, length = HEADER.unpack(header)
    if magic != _MAGIC:
        raise InvalidDocument(f"not the data protocol: {bytes(header[:4])!r}")
    if version != PROTOCOL_VERSION:
        raise AnotherVersion(f"version {version} of the data protocol; this program speaks version {PROTOCOL_VERSION}")
    if kind not in MAX_PAYLOAD_BYTES:
        raise InvalidDocument(f"a frame of unknown kind {kind}")
    kind = FrameKind(kind)
    if length > MAX_PAYLOAD_BYTES[kind]:
        raise InvalidDocument(f"a {kind.name} frame of {length} bytes; at most {MAX_PAYLOAD_BYTES[kind]}")
    if kind in OF_A_REQUEST and request == CONNECTION_REQUEST:
        raise InvalidDocument(f"a {kind.name} frame with request number 0; allowed: 1 to {MAX_REQUEST_NUMBER}")
    if kind not in OF_A_REQUEST and kind is not FrameKind.ERROR and request != CONNECTION_REQUEST:
        raise InvalidDocument(f"a {kind.name} frame with request number {request}; allowed: {CONNECTION_REQUEST}")
    return FrameHeader(kind, request, length)


def json_frame(kind: FrameKind, request: int, document: Hello | Welcome | DataFailure) -> bytes:
    """Return a frame with a document."""
    payload = canonical_json(document)
    return frame_header(kind, request, len(payload)) + payload


def get_frame(request: int, data_ids: DataIds, version: int = ANY_VERSION) -> bytes:
    """Return a `GET` frame for these data indices."""
    return frame_header(FrameKind.GET, request, _GET.size) + _GET.pack(version, data_ids.start, data_ids.end)


def parse_get(payload: bytes) -> Get:
    """Return the request of a `GET`; `InvalidInput` if the payload does not hold a closed interval of data indices."""
    if len(payload) != _GET.size:
        raise InvalidDocument(f"a GET of {len(payload)} bytes; it has {_GET.size}")
    version, start, end = _GET.unpack(payload)
    return Get(DataIds(start, end), version)


def failure_of(error: DataError) -> DataFailure:
    """Return the document of an error."""
    return DataFailure(error.kind, error.message[:MAX_MESSAGE_CHARS])  # type: ignore[arg-type]


def error_of(payload: bytes, server: str) -> DataError:
    """Return the error in an `ERROR` frame's payload, with the server's address before its reason.

    Raises:
        InvalidDocument: the payload is not an error's; the server's fault.
    """
    failure = parse_document(DataFailure, payload)
    kinds: dict[DataErrorKind, type[DataError]] = {
        kind.kind: kind for kind in (SourceUnavailable, CorruptData, OutOfRange, Rejected)
    }
    return kinds[failure.kind](f"{server} says: {visible(failure.reason)}", by="data server")
