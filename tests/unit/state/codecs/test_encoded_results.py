"""Results of every codec: their files, which are checked a piece at a time, and bytes that are none."""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.codecs.codec import PART_VALUES, EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InvalidResult
from epochal.state.model.tensors import Tensors, layout_of
from epochal.state.results import ResultHeader, check_result, decode_result, encode_result, result_size_bound
from tests.support.data.watched_reads import WatchedReads

MAX_ABS = 1e4
CODECS = ("float32", "int8", "int4", "int2", "sparse-64", "sparse-1000")
HEADER = ResultHeader("demo", 7, 2, "ab" * 16, "cd" * 32, "ef" * 32)
DIFFERENCE: Tensors = {
    "b": np.random.default_rng(1).standard_normal(3).astype(np.float32),
    "w": np.random.default_rng(2).standard_normal((5, 60)).astype(np.float32),
}
LAYOUT = layout_of(DIFFERENCE)


def header_of(codec: str) -> ResultHeader:
    return replace(HEADER, codec=codec)


@pytest.mark.parametrize("codec", CODECS)
def test_encoded_result_keeps_every_rule_and_gives_its_values(codec: str) -> None:
    data = encode_result(header_of(codec), DIFFERENCE)
    assert check_result(data, header_of(codec), LAYOUT, MAX_ABS)[0] == header_of(codec)
    assert len(data) <= result_size_bound(LAYOUT, codec)
    header, difference = decode_result(data, LAYOUT)
    assert header == header_of(codec)
    for name, values in DIFFERENCE.items():
        found = difference[name]
        expected = EncodedTensor(codec_named(codec), values.shape, codec_named(codec).encode(values)).values()
        assert np.array_equal(found.values() if isinstance(found, EncodedTensor) else found, expected)


@pytest.mark.parametrize("codec", CODECS)
@given(st.binary(max_size=24), st.integers(0, 1200), st.integers(0, 24))
def test_mutated_encoded_result_raises_nothing_but_invalid_result(codec: str, patch: bytes, at: int, cut: int) -> None:
    good = encode_result(header_of(codec), DIFFERENCE)
    start = at % len(good)
    mutated = good[:start] + patch + good[start + cut :]
    try:
        header = check_result(mutated, header_of(codec), LAYOUT, MAX_ABS)[0]
    except InvalidResult as error:
        assert error.rule  # noqa: PT017
    else:
        assert replace(header, replica_digest=HEADER.replica_digest) == header_of(codec)
        decode_result(mutated, LAYOUT)


@pytest.mark.parametrize("codec", CODECS)
def test_encoded_result_is_checked_a_piece_at_a_time(codec: str) -> None:
    difference = {"w": np.ones(4 * PART_VALUES + 5, np.float32)}
    watched = WatchedReads(encode_result(header_of(codec), difference))
    check_result(watched, header_of(codec), layout_of(difference), MAX_ABS)
    assert max(watched.read_bytes) <= 4 * PART_VALUES
    assert len(watched.read_bytes) >= 5


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("other", CODECS)
def test_result_of_another_codec_than_the_runs_is_refused(codec: str, other: str) -> None:
    data = encode_result(header_of(codec), DIFFERENCE)
    if codec != other:
        with pytest.raises(InvalidResult) as caught:
            check_result(data, header_of(other), LAYOUT, MAX_ABS)
        assert caught.value.rule in ("codec", "size")


def test_result_whose_tensors_have_the_type_of_another_codec_is_refused() -> None:
    for codec, wrong in (("int8", DIFFERENCE), ("float32", {name: np.zeros(9, np.uint8) for name in DIFFERENCE})):
        metadata = {"format": "epochal/result/v1", "run_id": "demo", "step": "7", "attempt": "2"}
        metadata |= {
            "client_id": "ab" * 16,
            "work_sha256": "cd" * 32,
            "replica_digest": "ef" * 32,
            "computed": "float32/cpu",
        }
        data = safetensors.numpy.save(wrong, metadata if codec == "float32" else metadata | {"codec": codec})
        with pytest.raises(InvalidResult) as caught:
            check_result(data, header_of(codec), LAYOUT, MAX_ABS)
        assert caught.value.rule == "dtype"
