"""The check of a result's bytes: each rule broken once, and arbitrary bytes that do no worse than be refused."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.errors import InvalidResult
from epochal.state.model.tensors import Tensors, layout_of
from epochal.state.results import ResultHeader, check_result, decode_result, encode_result, result_size_bound

MAX_ABS = 1e4
HEADER = ResultHeader("demo", 7, 2, "ab" * 16, "cd" * 32, "ef" * 32)
DIFFERENCE: Tensors = {
    "b": np.array([MAX_ABS, -MAX_ABS, 1e-45], np.float32),
    "w": np.arange(8, dtype=np.float32).reshape(2, 4),
}
LAYOUT = layout_of(DIFFERENCE)
GOOD = encode_result(HEADER, DIFFERENCE)


def check(data: bytes) -> ResultHeader:
    return check_result(data, HEADER, LAYOUT, MAX_ABS)[0]


def broken_rule(data: bytes) -> str:
    with pytest.raises(InvalidResult) as caught:
        check(data)
    return caught.value.rule


def rewritten(change: Callable[[dict[str, Any]], object]) -> bytes:
    (length,) = struct.unpack_from("<Q", GOOD)
    header = json.loads(GOOD[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + GOOD[8 + length :]


def with_value(name: str, value: float) -> bytes:
    difference = {key: array.copy() for key, array in DIFFERENCE.items()}
    difference[name].flat[-1] = value
    return encode_result(HEADER, difference)


def test_result_that_keeps_every_rule_gives_its_own_header() -> None:
    assert check(GOOD) == HEADER
    assert check_result(memoryview(bytearray(GOOD)), HEADER, LAYOUT, MAX_ABS)[0] == HEADER


EAGER = replace(HEADER, replica_digest="12" * 32, start="34" * 32)
"""What a client that trained before its round says, and what is expected of one that might."""


def test_result_from_the_own_start_gives_its_own_header() -> None:
    assert check_result(encode_result(EAGER, DIFFERENCE), EAGER, LAYOUT, MAX_ABS)[0] == EAGER
    assert check_result(GOOD, EAGER, LAYOUT, MAX_ABS)[0] == HEADER, "nobody has to"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (EAGER, HEADER),
        (replace(EAGER, start="56" * 32), EAGER),
        (replace(EAGER, replica_digest="56" * 32), EAGER),
        (replace(EAGER, start=""), EAGER),
    ],
)
def test_result_from_another_start_is_refused(found: ResultHeader, expected: ResultHeader) -> None:
    with pytest.raises(InvalidResult) as caught:
        check_result(encode_result(found, DIFFERENCE), expected, LAYOUT, MAX_ABS)
    assert caught.value.rule == "start"


@pytest.mark.parametrize("start", ["", "ab", "AB" * 32])
def test_result_with_a_start_that_is_no_digest_is_refused(start: str) -> None:
    assert broken_rule(rewritten(lambda header: header["__metadata__"].update(start=start))) == "start"


def test_result_replica_digest_is_returned_and_not_compared() -> None:
    own = replace(HEADER, replica_digest="01" * 32)
    assert check(encode_result(own, DIFFERENCE)) == own


def test_result_says_how_it_was_computed() -> None:
    own = replace(HEADER, computed="bf16/nvidia-h100-80gb-hbm3")
    assert check(encode_result(own, DIFFERENCE)) == own, "it is not compared"


def test_result_bytes_do_not_depend_on_the_order_or_layout_of_arrays() -> None:
    scattered = {"w": np.asfortranarray(DIFFERENCE["w"]), "b": np.repeat(DIFFERENCE["b"], 2)[::2]}
    assert encode_result(HEADER, scattered) == GOOD


def test_result_written_by_the_safetensors_library_is_accepted() -> None:
    metadata = {"format": "epochal/result/v1", "run_id": "demo", "step": "7", "attempt": "2"}
    metadata |= {"client_id": "ab" * 16, "work_sha256": "cd" * 32, "replica_digest": "ef" * 32}
    metadata["computed"] = HEADER.computed
    assert check(safetensors.numpy.save(DIFFERENCE, metadata)) == HEADER


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ("run_id", replace(HEADER, run_id="other")),
        ("step", replace(HEADER, step=8)),
        ("attempt", replace(HEADER, attempt=1)),
        ("client_id", replace(HEADER, client_id="ba" * 16)),
        ("work_sha256", replace(HEADER, work_sha256="dc" * 32)),
        ("work_sha256", replace(HEADER, work_sha256="CD" * 32)),
        ("replica_digest", replace(HEADER, replica_digest="ef" * 31)),
        ("replica_digest", replace(HEADER, replica_digest="xy" * 32)),
        ("codec", replace(HEADER, codec="int8")),
        ("step", replace(HEADER, step=-7)),
        ("computed", replace(HEADER, computed="float32")),
        ("computed", replace(HEADER, computed="Float32/cpu")),
        ("computed", replace(HEADER, computed=f"float32/{'x' * 33}")),
        ("computed", replace(HEADER, computed="float32/cpu\n")),
    ],
)
def test_result_copied_from_elsewhere_is_refused_by_rule(rule: str, other: ResultHeader) -> None:
    assert broken_rule(encode_result(other, DIFFERENCE)) == rule


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        ("finite", "b", np.nan),
        ("finite", "w", np.inf),
        ("finite", "w", -np.inf),
        ("max_abs", "b", np.nextafter(np.float32(MAX_ABS), np.float32(np.inf))),
        ("max_abs", "w", -np.nextafter(np.float32(MAX_ABS), np.float32(np.inf))),
    ],
)
def test_result_with_a_forbidden_value_is_refused_by_rule(rule: str, name: str, value: float) -> None:
    assert broken_rule(with_value(name, value)) == rule


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("layout", lambda h: h["w"].update(shape=[4, 2])),
        ("layout", lambda h: h["w"].update(shape=[8])),
        ("layout", lambda h: h.update(v=h.pop("w"))),
        ("layout", lambda h: h.update({"\ud800": h.pop("w")})),
        ("layout", lambda h: h["b"].update(data_offsets=[0, 8])),
        ("dtype", lambda h: h["w"].update(dtype="I32")),
        ("format", lambda h: h["__metadata__"].update(format="epochal/checkpoint")),
        ("header", lambda h: h["__metadata__"].update(note="")),
        ("header", lambda h: h["__metadata__"].pop("attempt")),
        ("step", lambda h: h["__metadata__"].update(step="+7")),
        ("attempt", lambda h: h["__metadata__"].update(attempt=" 2")),
        ("run_id", lambda h: h["__metadata__"].update(run_id="\ud800" * 9)),
        ("codec", lambda h: h["__metadata__"].update(codec="float32")),
        ("codec", lambda h: h["__metadata__"].update(codec="float16")),
        ("codec", lambda h: h["__metadata__"].update(codec="sparse-064")),
        ("codec", lambda h: h["__metadata__"].update(codec="sparse-4097")),
        ("codec", lambda h: h["__metadata__"].update(codec="int4")),
        ("size", lambda h: h["__metadata__"].update(run_id="x" * 5000)),
    ],
)
def test_result_with_another_header_is_refused_by_rule(rule: str, change: Callable[[dict[str, Any]], object]) -> None:
    assert broken_rule(rewritten(change)) == rule


def test_result_with_missing_or_trailing_bytes_is_refused() -> None:
    for wrong in (b"", GOOD[:-1], GOOD + b"\0", GOOD[:50], GOOD + bytes(100_000)):
        assert broken_rule(wrong) == "size"


def test_result_refusal_can_be_written_to_any_log() -> None:
    for data in (
        rewritten(lambda h: h["__metadata__"].update(run_id="\ud800\n")),
        rewritten(lambda h: h.update({"\ud800": 1})),
    ):
        with pytest.raises(InvalidResult) as caught:
            check(data)
        assert caught.value.message.isascii()
        assert "\n" not in caught.value.message


@given(
    st.lists(st.tuples(st.text(min_size=1), st.lists(st.integers(1, 3), max_size=4)), min_size=1, max_size=5),
    st.text(max_size=32),
)
def test_result_size_bound_holds_for_every_header(entries: list[tuple[str, list[int]]], run_id: str) -> None:
    named = {name: np.zeros(shape, np.float32) for name, shape in entries if name != "__metadata__"}
    try:
        data = encode_result(replace(HEADER, run_id=run_id, step=2**63 - 1), named)
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    assert len(data) <= result_size_bound(layout_of(named))


def padded(length: int) -> bytes:
    """Return a good result for `EVEN` whose header is padded with blanks to this size of the whole file."""
    good = encode_result(HEADER, EVEN)
    (header_bytes,) = struct.unpack_from("<Q", good)
    header, values = good[8 : 8 + header_bytes], good[8 + header_bytes :]
    header = header.ljust(length - 8 - len(values))
    return struct.pack("<Q", len(header)) + header + values


EVEN: Tensors = {"even": np.zeros(4, np.float32)}


def test_result_may_be_as_large_as_the_bound_and_no_larger() -> None:
    bound = result_size_bound(layout_of(EVEN))
    assert check_result(padded(bound), HEADER, layout_of(EVEN), MAX_ABS)[0] == HEADER
    with pytest.raises(InvalidResult, match=f"{bound + 8} bytes; at most {bound}") as caught:
        check_result(padded(bound + 8), HEADER, layout_of(EVEN), MAX_ABS)
    assert caught.value.rule == "size"


@pytest.mark.parametrize(
    ("step", "is_read"),
    [
        ("0", True),
        ("9" * 19, True),
        ("9" * 20, False),
        ("1" + "0" * 20, False),
        ("01", False),
        ("+1", False),
        ("²", False),
        ("", False),
    ],
)
def test_step_of_a_result_is_a_natural_number_of_at_most_19_digits(step: str, is_read: bool) -> None:
    data = rewritten(lambda header: header["__metadata__"].update(step=step))
    if is_read:
        assert decode_result(data, LAYOUT)[0].step == int(step)
    else:
        with pytest.raises(InvalidResult, match="not a natural number"):
            decode_result(data, LAYOUT)


def test_result_of_another_model_names_the_first_tensor_that_differs() -> None:
    other = layout_of({"a": np.zeros(1), **DIFFERENCE})
    with pytest.raises(InvalidResult, match=r"tensor 'a' has shape None; the model's is \(1,\)"):
        check_result(GOOD, HEADER, other, MAX_ABS)
    with pytest.raises(InvalidResult, match=r"tensor 'w' has shape \(2, 4\); the model's is \(8,\)"):
        check_result(GOOD, HEADER, layout_of({**DIFFERENCE, "w": np.zeros(8)}), MAX_ABS)
