"""The codecs: vectors down to the bits, an oracle in plain Python, one test a rule, and arbitrary bytes."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.codecs.codec import LEAST_SCALE, Block, Codec, EncodedTensor
from epochal.state.codecs.codecs_by_name import SPOKEN, codec_named, find_codec, spoken_as
from epochal.state.errors import InternalError, InvalidResult
from epochal.state.model.tensors import Float32Array, TensorLayout
from tests.support.models.codec_oracle import decode

VECTORS = json.loads(Path(__file__).with_name("codec_vectors.json").read_text(encoding="utf-8"))
MAX_ABS = 1e4
RECORDS = ("int8", "int4", "int2", "sparse-64", "sparse-1", "sparse-4096", "sparse-77")
COUNTS = (1, 2, 3, 63, 64, 65, 255, 256, 257, 511, 4095, 4096, 4097, 8200)
tensors = st.builds(
    lambda seed, count, scale: (np.random.default_rng(seed).standard_normal(count) * scale).astype(np.float32),
    st.integers(0, 2**32),
    st.sampled_from(COUNTS),
    st.sampled_from([0.0, 1e-45, 1e-38, 1e-3, 1.0, 1e3]),
)


def block_of(data: bytes) -> Block:
    return np.frombuffer(data, np.uint8)


def size_of(codec: Codec, count: int) -> int:
    return codec.encoded(TensorLayout((("w", (count,)),))).size_bytes


def decoded(codec: Codec, block: Block, count: int) -> Float32Array:
    return EncodedTensor(codec, (count,), block).values()


def broken_rule(codec: Codec, block: Block, count: int) -> str | None:
    """Check a tensor in the middle of a file."""
    found = codec.check(b"before" + block.tobytes() + b"after", len(b"before"), count, MAX_ABS)
    return found if isinstance(found, str) else None


def bits_of(values: Any) -> list[str]:
    return [struct.pack(">f", value).hex() for value in values]


def test_codec_golden_vectors_are_kept() -> None:
    for vector in VECTORS["accepted"]:
        codec, count, data = codec_named(vector["codec"]), vector["count"], bytes.fromhex(vector["bytes"])
        expected = [vector["values"].get(str(index), "00000000") for index in range(count)]
        assert bits_of(decode(vector["codec"], data, count)) == expected, vector
        assert size_of(codec, count) == len(data), vector
        assert broken_rule(codec, block_of(data), count) is None, vector
        assert bits_of(decoded(codec, block_of(data), count)) == expected, vector


def test_codec_that_breaks_a_rule_is_refused_by_name() -> None:
    for vector in VECTORS["refused"]:
        codec, data = codec_named(vector["codec"]), bytes.fromhex(vector["bytes"])
        assert size_of(codec, vector["count"]) == len(data), vector
        assert broken_rule(codec, block_of(data), vector["count"]) == vector["rule"], vector


@pytest.mark.parametrize("name", RECORDS)
@given(values=tensors)
def test_encoded_tensor_keeps_the_rules_and_agrees_with_the_oracle(name: str, values: Float32Array) -> None:
    codec = codec_named(name)
    block = codec.encode(values)
    assert block.size == size_of(codec, values.size)
    assert broken_rule(codec, block, values.size) is None
    assert bits_of(decoded(codec, block, values.size)) == bits_of(decode(name, block.tobytes(), values.size))


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data(), count=st.sampled_from([1, 2, 3, 65, 257]))
def test_codec_of_arbitrary_bytes_never_fails_otherwise(name: str, data: st.DataObject, count: int) -> None:
    codec = codec_named(name)
    size = size_of(codec, count)
    block = block_of(data.draw(st.binary(min_size=size, max_size=size)))
    if broken_rule(codec, block, count) is None:
        assert np.isfinite(decoded(codec, block, count)).all()
    else:
        try:
            decoded(codec, block, count)
        except InvalidResult as error:
            assert error.rule == "index"  # noqa: PT017


@pytest.mark.parametrize("name", RECORDS)
@given(values=tensors, data=st.data())
def test_bytes_that_decode_alike_are_not_accepted_twice(name: str, values: Float32Array, data: st.DataObject) -> None:
    codec = codec_named(name)
    block = codec.encode(values)
    place = data.draw(st.integers(0, block.size - 1))
    other = block.copy()
    other[place] ^= data.draw(st.integers(1, 255))
    if broken_rule(codec, other, values.size) is None:
        assert bits_of(decoded(codec, other, values.size)) != bits_of(decoded(codec, block, values.size))


@pytest.mark.parametrize(("name", "steps"), [("int8", 127), ("int4", 7)])
@given(values=tensors)
def test_integer_codec_is_off_by_half_a_step_at_most(name: str, steps: int, values: Float32Array) -> None:
    found = decoded(codec_named(name), codec_named(name).encode(values), values.size)
    for start in range(0, values.size, 256):
        part = slice(start, start + 256)
        step = max(float(np.abs(values[part]).max()) / steps, float(LEAST_SCALE))
        assert np.abs(found[part] - values[part]).max() <= 0.5001 * step


def test_integer_codec_rounds_halves_to_even() -> None:
    values = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert decoded(codec_named("int8"), codec_named("int8").encode(values), 6).tolist() == [127, 0, 2, 2, 0, -2]


def test_sparse_codec_sends_the_largest_and_of_equal_ones_the_first() -> None:
    codec, values = codec_named("sparse-128"), np.zeros(128, np.float32)
    values[[5, 9, 40, 70, 90]] = [1, -4, 1, 3, -1]
    found = decoded(codec, codec.encode(values), 128)
    assert {int(index): float(found[index]) for index in np.nonzero(found)[0]} == {5: 1.0, 9: -3.5, 40: 1.0, 70: 3.5}


def test_sparse_codec_levels_are_the_means_of_the_halves() -> None:
    codec = codec_named("sparse-4096")
    found = decoded(codec, codec.encode(np.array([1, 10, -2, 20, 3], np.float32)), 5)
    assert found.tolist() == [1.5, 11, -1.5, 11, 1.5]


@pytest.mark.parametrize("name", RECORDS)
def test_parts_of_a_tensor_decode_as_the_whole_does(name: str) -> None:
    codec, count = codec_named(name), 3 * 65536 + 4096 + 300
    values = np.random.default_rng(2).standard_normal(count).astype(np.float32)
    block = codec.encode(values)
    whole = decoded(codec, block, count)
    for start in range(0, count, 65536):
        part = codec.decode(block, count, start, np.empty(min(65536, count - start), np.float32))
        assert bits_of(part[:500]) == bits_of(whole[start : start + 500])
        assert np.array_equal(part, whole[start : start + 65536])


@pytest.mark.parametrize(("start", "size"), [(1, 256), (0, 255), (256, 300)])
def test_part_that_does_not_begin_and_end_at_groups_is_our_own_bug(start: int, size: int) -> None:
    codec = codec_named("int8")
    with pytest.raises(InternalError, match="groups of 256"):
        codec.decode(codec.encode(np.zeros(512, np.float32)), 512, start, np.empty(size, np.float32))


@pytest.mark.parametrize(
    ("name", "rate"), [("float32", 4.0), ("int8", 1.0157), ("int4", 0.5157), ("int2", 0.2657), ("sparse-64", 0.0293)]
)
def test_codec_takes_as_many_bytes_a_parameter_as_specified(name: str, rate: float) -> None:
    count = 1 << 20
    assert size_of(codec_named(name), count) / count == pytest.approx(rate, abs=1e-4)


@pytest.mark.parametrize("name", ["", "float16", "int16", "sparse", "sparse-0", "sparse-064", "sparse-4097", "INT8"])
def test_unknown_name_has_no_codec(name: str) -> None:
    assert find_codec(name) is None
    with pytest.raises(InternalError):
        codec_named(name)


def test_every_codec_is_spoken_with_the_version_of_its_format() -> None:
    assert {spoken_as(name) for name in ("float32", "int8", "int4", "int2", "sparse-64")} == set(SPOKEN)
