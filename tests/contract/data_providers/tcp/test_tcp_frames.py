"""The frames of the TCP data protocol: as its specification shows them, and as nobody should send them."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.data_providers.protocol import MAX_SEQUENCE_BYTES, SourceUnavailable
from epochal.data_providers.tcp.client_connection import ClientConnection, DataServerAddress, WantedPiece
from epochal.data_providers.tcp.frames import (
    HEADER_BYTES,
    MAX_JSON_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_TICKET_CHARS,
    PROTOCOL_VERSION,
    AnotherVersion,
    DataFailure,
    FrameKind,
    Hello,
    Welcome,
    frame_header,
    get_frame,
    json_frame,
    parse_get,
    parse_header,
)
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS
from epochal.state.errors import InvalidDocument
from epochal.state.intervals import DataIds
from epochal.state.messages.requests import MAX_MESSAGE_CHARS
from epochal.state.wire import parse_document
from tests.fuzz.frames import PIECES, Forgetful, fuzz_one

PAGE = (Path(__file__).parents[4] / "docs" / "data-protocol.md").read_text(encoding="utf-8")
DOCUMENTS: dict[FrameKind, Any] = {FrameKind.HELLO: Hello, FrameKind.WELCOME: Welcome, FrameKind.ERROR: DataFailure}


def examples() -> list[tuple[dict[str, Any], bytes]]:
    """Return what each example of the page means, and its bytes: of a line the hexadecimal digits, or its JSON."""
    block = r"<!-- example: (\{[^\n]*?\}) -->\n(?:<!-- not run:[^\n]*-->\n)?```text\n(.*?)```"
    found = re.findall(block, PAGE, re.DOTALL)
    return [
        (json.loads(meaning), b"".join(bytes_of_line(line) for line in block.splitlines())) for meaning, block in found
    ]


def bytes_of_line(line: str) -> bytes:
    """Return what a line of an example stands for."""
    return line.encode() if line.startswith("{") else bytes.fromhex(line.partition("  ")[0])


def test_specification_shows_every_kind_of_frame() -> None:
    assert [meaning["kind"] for meaning, _ in examples()] == [kind.name for kind in FrameKind]


@pytest.mark.parametrize(("meaning", "frame"), examples(), ids=[kind.name for kind in FrameKind])
def test_example_of_the_specification_is_written_so(meaning: dict[str, Any], frame: bytes) -> None:
    kind, request = FrameKind[meaning["kind"]], meaning["request"]
    if kind is FrameKind.GET:
        assert get_frame(request, DataIds(meaning["first"], meaning["last"]), meaning["version"]) == frame
    elif kind is FrameKind.SAMPLES:
        tokens = struct.pack(f"<{len(meaning['tokens'])}H", *meaning["tokens"])
        assert frame_header(kind, request, len(tokens)) + tokens == frame
    else:
        assert json_frame(kind, request, DOCUMENTS[kind](**meaning["document"])) == frame


@pytest.mark.parametrize(("meaning", "frame"), examples(), ids=[kind.name for kind in FrameKind])
def test_example_of_the_specification_is_read_so(meaning: dict[str, Any], frame: bytes) -> None:
    header, payload = parse_header(frame[:HEADER_BYTES]), frame[HEADER_BYTES:]
    kind = FrameKind[meaning["kind"]]
    assert header == (kind, meaning["request"], len(payload))
    if kind is FrameKind.GET:
        assert parse_get(payload) == (DataIds(meaning["first"], meaning["last"]), meaning["version"])
    elif kind is not FrameKind.SAMPLES:
        assert parse_document(DOCUMENTS[kind], payload) == DOCUMENTS[kind](**meaning["document"])


def test_specification_names_every_kind_with_its_number_and_bound() -> None:
    rows = re.findall(r"^\| (\d+) \| `([A-Z]+)` \| \w+ \| [^|]+ \| ([\d,]+)", PAGE, re.MULTILINE)
    assert {name: (int(number), int(bound.replace(",", ""))) for number, name, bound in rows} == {
        kind.name: (int(kind), MAX_PAYLOAD_BYTES[kind]) for kind in FrameKind
    }


@pytest.mark.parametrize(
    "said",
    [
        f"**version {PROTOCOL_VERSION}** of the protocol",
        f"text, at most {MAX_TICKET_CHARS:,} characters",
        f"| `reason` | text, at most {MAX_MESSAGE_CHARS:,} characters",
        f"has at most {MAX_SEQUENCE_BYTES:,} bytes",
        f"1 to {MAX_SEQUENCE_BYTES // 2:,}",
        f"without `HELLO` after {DEFAULT_LIMITS.handshake_timeout_s:g} s",
        f"without a request after {DEFAULT_LIMITS.idle_timeout_s:g} s",
        f"not within {DEFAULT_LIMITS.send_timeout_s:g} s",
        f"slowly than {DEFAULT_LIMITS.least_bytes_per_s / 1024:g} KiB/s on average "
        f"after its first {DEFAULT_LIMITS.slow_after_s:g} s",
    ],
)
def test_bounds_of_the_specification_are_those_of_the_code(said: str) -> None:
    assert said in " ".join(PAGE.split())


@given(st.integers(0, 255).filter(lambda version: version != PROTOCOL_VERSION), st.binary(min_size=9, max_size=9))
def test_header_of_another_version_names_both(version: int, rest: bytes) -> None:
    with pytest.raises(AnotherVersion, match=f"^version {version} .* speaks version {PROTOCOL_VERSION}"):
        parse_header(b"EP" + bytes([version]) + rest)


@given(
    st.sampled_from(FrameKind),
    st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, MAX_JSON_BYTES), st.integers(0, 2**32 - 1)),
)
def test_header_is_read_as_written_or_refused(kind: FrameKind, request: int, length: int) -> None:
    header = frame_header(kind, request, length)
    if length > MAX_PAYLOAD_BYTES[kind]:
        refused = f"at most {MAX_PAYLOAD_BYTES[kind]}$"
    elif kind in {FrameKind.GET, FrameKind.SAMPLES} and not request:
        refused = f"{kind.name} frame with request number 0; allowed: 1 to {2**32 - 1}$"
    elif kind in {FrameKind.HELLO, FrameKind.WELCOME} and request:
        refused = f"{kind.name} frame with request number {request}; allowed: 0$"
    else:
        assert parse_header(header) == (kind, request, length)
        return
    with pytest.raises(InvalidDocument, match=refused):
        parse_header(header)


def frames() -> st.SearchStrategy[bytes]:
    """Return frames that are almost right, one after the other."""
    json_payloads = st.one_of(
        st.just(json_frame(FrameKind.ERROR, 1, DataFailure("corrupt", "x"))[HEADER_BYTES:]), st.binary(max_size=40)
    )
    payloads = st.one_of(json_payloads, *(st.binary(min_size=length, max_size=length) for length in PIECES))
    whole = st.builds(
        lambda kind, request, payload: frame_header(kind, request, len(payload)) + payload,
        st.sampled_from(FrameKind),
        st.integers(0, 3),
        payloads,
    )
    promised = st.builds(frame_header, st.sampled_from(FrameKind), st.integers(0, 3), st.integers(0, 2**32 - 1))
    return st.lists(st.one_of(whole, whole, promised, st.binary(max_size=14)), max_size=6).map(b"".join)


@pytest.mark.parametrize(
    "length", [1, PIECES[0] - 1, PIECES[0] + 1, 2 * PIECES[0], MAX_PAYLOAD_BYTES[FrameKind.SAMPLES]]
)
async def test_samples_of_another_length_than_asked_for_are_refused(length: int) -> None:
    connection = ClientConnection(DataServerAddress("h", 1, "a-run"))
    connection.connection_made(Forgetful())
    memory = bytearray(PIECES[0])
    call = connection.ask([WantedPiece(DataIds(0, 0), memoryview(memory))], 0)
    connection.get_buffer(-1)[:] = frame_header(FrameKind.SAMPLES, 1, length)
    connection.buffer_updated(HEADER_BYTES)
    assert call.done.done(), "before a byte of them is received"
    with pytest.raises(SourceUnavailable, match=f"{length} bytes of samples where {PIECES[0]} were asked for"):
        await call.done
    connection.welcome.exception()


@given(st.integers(0, 255), frames())
@example(31, frame_header(FrameKind.SAMPLES, 1, 8) + bytes(8) + frame_header(FrameKind.SAMPLES, 1, 8) + bytes(8))
@example(31, frame_header(FrameKind.SAMPLES, 2, MAX_JSON_BYTES))
def test_frames_of_any_bytes_are_read_or_refused(step: int, data: bytes) -> None:
    fuzz_one(bytes([step]) + data)
