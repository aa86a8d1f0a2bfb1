"""Tensor files and layouts at their bounds: the last length, size and value that is allowed, and the next."""

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.errors import InternalError
from epochal.state.model import tensors
from epochal.state.model.layout_difference import layout_difference
from epochal.state.model.tensors import (
    CHECK_CHUNK_ELEMENTS,
    MAX_DIMENSIONS,
    PIECE_BYTES,
    Float32Array,
    InvalidTensorFile,
    TensorLayout,
    encode_tensor_file,
    frozen_tensors,
    parse_tensor_file,
    stream_of,
    tensor_stream,
    wire_bytes,
)
from epochal.state.model.value_checks import check_values
from epochal.state.reader_limits import MAX_TENSOR_HEADER_BYTES as MAX_HEADER
from epochal.state.wire import sha256_hex

WEIGHTS = {"w": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32), "b": np.array([7.0], np.float32)}


def file_of(header: Any, values: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values


def entry(shape: list[Any], start: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


def rule_of(data: bytes) -> str | None:
    """Return the rule that the file breaks, or None."""
    try:
        parse_tensor_file(data)
    except InvalidTensorFile as error:
        return error.rule
    return None


def test_file_has_its_length_header_and_values_in_name_order() -> None:
    data = encode_tensor_file(WEIGHTS, {"z": "1", "a": "2"})
    (header_bytes,) = struct.unpack("<Q", data[:8])
    assert header_bytes % 8 == 0
    assert data[8 : 8 + header_bytes].rstrip(b" ") == (
        b'{"__metadata__":{"a":"2","z":"1"},'
        b'"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"w":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]}}'
    )
    assert header_bytes - len(data[8 : 8 + header_bytes].rstrip(b" ")) < 8
    assert data[8 + header_bytes :] == struct.pack("<7f", 7, 1, 2, 3, 4, 5, 6)


def test_file_that_is_read_gives_each_tensor_its_own_values() -> None:
    found = parse_tensor_file(encode_tensor_file(WEIGHTS, {"z": "1"}))
    assert found.metadata == {"z": "1"}
    assert found.layout == TensorLayout((("b", (1,)), ("w", (2, 3))))
    assert found.layout.size_bytes == 28
    tensors = found.tensors()
    assert list(tensors) == ["b", "w"]
    for name, values in tensors.items():
        np.testing.assert_array_equal(values, WEIGHTS[name])
        assert not values.flags.writeable


@pytest.mark.parametrize(("length", "rule"), [(0, "size"), (7, "size")])
def test_file_shorter_than_its_length_field_is_refused(length: int, rule: str) -> None:
    assert rule_of(b"\0" * length) == rule


@pytest.mark.parametrize(
    ("header_bytes", "rule"),
    [(MAX_HEADER, "size"), (MAX_HEADER + 8, "header"), (9, "header"), (7, "header"), (16, "size")],
)
def test_header_is_a_multiple_of_eight_bytes_up_to_the_bound(header_bytes: int, rule: str) -> None:
    assert rule_of(struct.pack("<Q", header_bytes) + b"        ") == rule


def test_file_of_a_header_alone_has_no_tensors() -> None:
    assert parse_tensor_file(struct.pack("<Q", 8) + b"{}      ").tensors() == {}
    assert rule_of(struct.pack("<Q", 0)) == "header"


@given(
    st.integers(0, 200),
    st.sampled_from([b"", b"}", b"},", b'"', b"{", b":{", b"\xff", b'"b":', b'},"__metadata__":{']),
    st.integers(0, 3),
)
def test_remembered_header_is_read_as_one_that_is_not(at: int, put: bytes, less: int) -> None:
    """Whatever is put into a valid header, in the place of what was there or beside it."""
    text = encode_tensor_file(WEIGHTS, {"z": "1", "a": "},2"})[8:-28]
    for changed in (text, text[:at] + put + text[at + less :]):
        try:
            whole = tensors._parse_whole(changed, ("F32",))
        except InvalidTensorFile:
            assert tensors._parse_known(changed, ("F32",)) is None
        else:
            assert tensors._parse_known(changed, ("F32",)) in (None, whole)
    plain = encode_tensor_file(WEIGHTS, {"z": "1"})[8:-28]
    assert tensors._parse_known(plain, ("F32",)) == tensors._parse_whole(plain, ("F32",))


@pytest.mark.parametrize(("count", "rule"), [(7, "size"), (8, None), (9, "size")])
def test_values_are_exactly_those_that_the_header_describes(count: int, rule: str | None) -> None:
    assert rule_of(file_of({"a": entry([2], 0, 8)}, b"\0" * count)) == rule


@pytest.mark.parametrize(("dimensions", "rule"), [(MAX_DIMENSIONS, None), (MAX_DIMENSIONS + 1, "layout")])
def test_tensor_has_its_maximum_of_dimensions_and_no_more(dimensions: int, rule: str | None) -> None:
    assert rule_of(file_of({"a": entry([1] * dimensions, 0, 4)}, b"\0" * 4)) == rule


@pytest.mark.parametrize("shape", [[0], [-1], [1.0], [True], "1", [2**63]])
def test_extent_that_is_not_a_positive_integer_is_refused(shape: Any) -> None:
    assert rule_of(file_of({"a": entry(shape, 0, 4)}, b"\0" * 4)) == "layout"


@pytest.mark.parametrize(("extent", "says"), [(2**63 - 1, "does not lie"), (2**63, "not integers from 1")])
def test_extent_fits_a_signed_integer_of_64_bits(extent: int, says: str) -> None:
    with pytest.raises(InvalidTensorFile, match=says):
        parse_tensor_file(file_of({"a": entry([extent], 0, 4)}))


@pytest.mark.parametrize("offsets", [[0, 3], [1, 5], [-1, 3], [0], [0, 4, 4], [0.0, 4]])
def test_tensor_lies_where_the_one_before_it_ends(offsets: list[Any]) -> None:
    header = {"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}
    assert rule_of(file_of(header, b"\0" * 4)) == "layout"
    two = {"a": entry([1], 0, 4), "b": entry([2], 4, 12)}
    assert rule_of(file_of(two, b"\0" * 12)) is None
    assert rule_of(file_of({**two, "b": entry([2], 5, 13)}, b"\0" * 13)) == "layout"


@pytest.mark.parametrize(
    "found",
    [[], "text", {"dtype": "F32", "shape": [1]}, {**entry([1], 0, 4), "more": 1}],
    ids=lambda found: str(found)[:9],
)
def test_entry_has_its_three_fields_and_no_other(found: Any) -> None:
    assert rule_of(file_of({"a": found}, b"\0" * 4)) == "header"


@pytest.mark.parametrize("metadata", [[], {"a": 1}, "text"])
def test_metadata_are_strings(metadata: Any) -> None:
    assert rule_of(file_of({"__metadata__": metadata})) == "header"
    assert rule_of(file_of([])) == "header"


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (8.0, None),
        (-8.0, None),
        (8.001, "max_abs"),
        (-8.001, "max_abs"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        (-math.inf, "finite"),
    ],
)
@pytest.mark.parametrize("position", [0, CHECK_CHUNK_ELEMENTS - 1, CHECK_CHUNK_ELEMENTS, CHECK_CHUNK_ELEMENTS + 1])
def test_every_value_is_checked_against_the_largest_magnitude(position: int, value: float, rule: str | None) -> None:
    values = np.zeros(CHECK_CHUNK_ELEMENTS + 2, np.float32)
    values[position] = value
    assert check_values(values, 8.0) == rule


@pytest.mark.parametrize(
    "entries",
    [
        (("b", (1,)), ("a", (1,))),
        (("a", (1,)), ("a", (1,))),
        (("__metadata__", (1,)),),
        (("a", (1, 0)),),
        (("a", (1,)), ("b", (-1,))),
    ],
)
def test_layout_that_no_file_could_have_is_our_own_bug(entries: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    with pytest.raises(InternalError):
        TensorLayout(entries)


def test_difference_of_layouts_names_three_tensors_and_counts_the_rest() -> None:
    needs = TensorLayout((("a", (1,)), ("b", (2,)), ("c", (3,))))
    assert layout_difference(needs, needs) is None
    has = TensorLayout((("b", (9,)), ("c", (3,)), ("d", (4,))))
    assert layout_difference(has, needs) == ("no 'a' of shape (1,), an unknown 'd', 'b' of shape (9,) instead of (2,)")
    more = TensorLayout((("b", (9,)), ("c", (8,)), ("d", (4,)), ("e", (1,))))
    assert (layout_difference(more, needs) or "").endswith("an unknown 'e', and 2 more differences")


def test_tensors_of_another_type_are_our_own_bug() -> None:
    with pytest.raises(InternalError):
        frozen_tensors({"a": np.zeros(2, np.float64)})
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    turned = plain.T
    frozen = frozen_tensors({"b": turned, "a": plain})
    assert list(frozen) == ["a", "b"]
    assert np.shares_memory(frozen["a"], plain)
    assert frozen["b"].flags.c_contiguous
    assert plain.flags.writeable
    assert bytes(wire_bytes(turned)) == struct.pack("<6f", 0, 3, 1, 4, 2, 5)


def test_name_beyond_ascii_is_written_as_it_is() -> None:
    data = encode_tensor_file({"größe": np.ones(1, np.float32)}, {"ü": "ß"})
    assert "größe".encode() in data
    assert '{"ü":"ß"}'.encode() in data
    assert list(parse_tensor_file(data).tensors()) == ["größe"]


def test_stream_is_the_file_in_pieces_of_bounded_size() -> None:
    tensors = {"a": np.arange(PIECE_BYTES // 2, dtype=np.float32), **WEIGHTS}
    stream = stream_of(tensors, {"step": "1"})
    data, pieces = encode_tensor_file(tensors, {"step": "1"}), list(stream.pieces())
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) == PIECE_BYTES
    assert (stream.size_bytes, stream.sha256()) == (len(data), sha256_hex(data))
    assert stream.tensors()["w"].tobytes() == WEIGHTS["w"].tobytes()


def test_stream_of_tensors_in_parts_is_that_of_whole_ones() -> None:
    layout = TensorLayout((("b", (1,)), ("w", (2, 3))))
    w = WEIGHTS["w"].reshape(-1)
    stream = tensor_stream(layout, {}, lambda: [WEIGHTS["b"], w[:1], w[1:5], w[5:]])
    assert stream.to_bytes() == encode_tensor_file(WEIGHTS, {})
    assert np.array_equal(stream.tensors()["w"], WEIGHTS["w"])


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [WEIGHTS["w"], WEIGHTS["b"]],
        [np.zeros(1, np.float32), np.zeros(7, np.float32)],
        [np.zeros(1, np.float32), WEIGHTS["w"], np.zeros(1, np.float32)],
    ],
)
def test_stream_with_other_arrays_than_its_header_says_is_a_bug(arrays: list[Float32Array]) -> None:
    stream = tensor_stream(TensorLayout((("b", (1,)), ("w", (2, 3)))), {}, lambda: arrays)
    with pytest.raises(InternalError, match="header says"):
        stream.to_bytes()
