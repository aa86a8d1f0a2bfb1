"""Samples of any length as frames carry them: the same arrays arrive, and nothing else is taken for samples."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from epochal.data_providers.protocol import MAX_REQUEST_BYTES, CorruptData, DatasetSpec, TokenBatch, TooManyBytes
from epochal.data_providers.tcp.frames import Welcome
from epochal.data_providers.tcp.payloads import (
    AnyLength,
    ArrivingSamples,
    parse_payload,
    payload_of,
    shape_of,
    welcome_of,
)
from epochal.state.documents import HexSha256
from epochal.state.errors import InvalidDocument
from epochal.state.intervals import DataIds

PRINT = "0" * 64


@st.composite
def batches(draw: st.DrawFn) -> TokenBatch:
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    total = sum(lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)

    def flat(low: int, high: int, dtype: str) -> NDArray[Any]:
        return np.array(draw(st.lists(st.integers(low, high), min_size=total, max_size=total)), dtype)

    if draw(st.booleans()):
        return TokenBatch(flat(0, 255, "<u2"), offsets, is_text=True)
    size = draw(st.sampled_from([2, 4]))
    tokens = flat(0, 2 ** (8 * size) - 1, f"<u{size}")
    labels = flat(-100, 2**32 - 1, "<i8") if draw(st.booleans()) else None
    positions = flat(0, 2**40, "<i8") if draw(st.booleans()) else None
    documents = np.array(lengths, np.int64) if draw(st.booleans()) else None
    return TokenBatch(tokens, offsets, labels, positions, documents)


def assert_same(found: TokenBatch, expected: TokenBatch) -> None:
    for name in ("input_ids", "offsets", "labels", "position_ids", "sequence_lengths"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if other is not None:
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)
    assert found.is_text == expected.is_text


@given(batches())
def test_samples_arrive_as_their_provider_returned_them(batch: TokenBatch) -> None:
    assert_same(parse_payload(memoryview(payload_of(batch))), batch)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_samples_or_refused(payload: bytes) -> None:
    try:
        batch = parse_payload(memoryview(payload))
    except InvalidDocument:
        return
    assert batch.sample_count >= 1
    assert len(payload_of(batch)) == len(payload)


@given(batches(), st.data())
def test_damaged_payload_is_refused_or_has_the_same_size(batch: TokenBatch, data: st.DataObject) -> None:
    payload = bytearray(payload_of(batch))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    try:
        found = parse_payload(memoryview(payload))
    except InvalidDocument:
        return
    assert len(payload_of(found)) == len(payload)


def of_lengths(*lengths: int) -> TokenBatch:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return TokenBatch(np.arange(offsets[-1], dtype="<u2"), offsets)


def test_parts_that_arrive_in_any_order_become_one_batch() -> None:
    arriving = ArrivingSamples()
    assert arriving.take(DataIds(7, 9), memoryview(payload_of(of_lengths(3, 1)))) == DataIds(9, 9)
    assert arriving.take(DataIds(5, 6), memoryview(payload_of(of_lengths(2, 4)))) is None
    assert arriving.take(DataIds(9, 9), memoryview(payload_of(of_lengths(5)))) is None
    assert np.diff(arriving.batch().offsets).tolist() == [2, 4, 3, 1, 5]


def test_more_samples_than_were_asked_for_are_refused() -> None:
    with pytest.raises(InvalidDocument, match="2 samples where 1 were asked for"):
        ArrivingSamples().take(DataIds(0, 0), memoryview(payload_of(of_lengths(1, 1))))


def test_call_takes_no_more_than_a_provider_returns_at_a_time() -> None:
    payload = memoryview(payload_of(of_lengths(2**22)))
    arriving = ArrivingSamples()
    fitting = MAX_REQUEST_BYTES // len(payload)
    for number in range(fitting):
        arriving.take(DataIds(number, number), payload)
    with pytest.raises(TooManyBytes, match=f"more than {MAX_REQUEST_BYTES} bytes"):
        arriving.take(DataIds(fitting, fitting), payload)


@pytest.mark.parametrize("shape", [AnyLength(300), DatasetSpec(2, 8)])
def test_welcome_says_the_shape_of_samples(shape: AnyLength | DatasetSpec) -> None:
    assert shape_of(welcome_of(shape, PRINT, 10)) == shape


@pytest.mark.parametrize("fields", [(2, 8, 300), (None, None, None), (2, None, 300), (None, 8, None)])
def test_welcome_with_another_shape_is_refused(fields: tuple[int | None, int | None, int | None]) -> None:
    size, length, mean_bytes = fields
    with pytest.raises(CorruptData, match="allowed: both of the former, or the latter alone"):
        shape_of(Welcome(HexSha256(PRINT), size, length, 10, mean_bytes))
