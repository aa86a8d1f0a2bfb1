"""`data_providers/formats/`: where the tokens are in a file, `ranged.py`, and the shape of what comes back."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.formats import npy
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.order import Extent
from epochal.data_providers.protocol import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_SAMPLES,
    CorruptData,
    DatasetSpec,
    Rejected,
    TokenBatch,
)
from epochal.data_providers.providers.ranged import MAX_GAP_BYTES, MAX_RANGE_BYTES, plan_ranges
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_formats import discovered

TWO_BYTES = DatasetSpec(2, 8)


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def file_of(data: bytes, spec: DatasetSpec = TWO_BYTES, name: str = "x.npy") -> TokenFile:
    return npy.npy_file(SourceFile(name, len(data), name), data[: npy.HEAD_BYTES], spec)


@pytest.mark.parametrize("name", ["x.bin", "x.ds"])
@pytest.mark.parametrize("size", [2, 4])
def test_raw_file_is_tokens_from_its_first_byte(name: str, size: int) -> None:
    assert discovered({name: bytes(40)}, DatasetSpec(size, 8)) == [TokenFile(name, 40, 40 // size, 0)]


def test_file_of_unknown_kind_is_no_token_file() -> None:
    assert discovered({"x.txt": bytes(40), "x.ds.index": bytes(40)}) == []


def test_npy_without_a_header_is_nothing_but_tokens() -> None:
    assert discovered({"x.npy": bytes(40)}) == [TokenFile("x.npy", 40, 20, 0)]


@pytest.mark.parametrize("name", ["x.bin", "x.npy"])
def test_file_that_ends_within_a_token_is_corrupt(name: str) -> None:
    with pytest.raises(CorruptData, match="41 bytes"):
        discovered({name: bytes(41)})


@pytest.mark.parametrize("dtype", ["<u2", "<i2"])
@pytest.mark.parametrize("shape", [(24,), (3, 8), (0,)])
def test_npy_header_is_honoured(dtype: str, shape: tuple[int, ...]) -> None:
    data = npy_bytes(np.arange(np.prod(shape), dtype=dtype).reshape(shape))
    file = file_of(data)
    assert file.token_count == np.prod(shape)
    assert np.frombuffer(data[file.data_offset_bytes :], dtype).tolist() == list(range(int(np.prod(shape))))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version_is_read(version: tuple[int, int]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(10, dtype="<u2"), version=version)
    assert file_of(stream.getvalue()).token_count == 10


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(8, "<u4"),
        np.zeros(8, ">u2"),
        np.zeros(8, "<f2"),
        np.zeros(8, "u1"),
        np.zeros((2, 2, 2), "<u2"),
        np.asfortranarray(np.zeros((4, 2), "<u2")),
        np.array(3, "<u2"),
    ],
)
def test_npy_that_contradicts_the_description_is_corrupt(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(CorruptData, match=r"x\.npy"):
        file_of(npy_bytes(array))


@pytest.mark.parametrize("change", [-2, -1, 1, 2])
def test_npy_of_another_size_than_its_header_says_is_corrupt(change: int) -> None:
    data = npy_bytes(np.arange(100, dtype="<u2"))
    data = data[:change] if change < 0 else data + b"\0" * change
    with pytest.raises(CorruptData, match="its header says"):
        file_of(data)


@pytest.mark.parametrize(("size", "length"), [(3, 8), (2, 0), (2, 2**23 + 1), (4, 2**22 + 1)])
def test_spec_outside_the_bounds_is_refused(size: int, length: int) -> None:
    with pytest.raises(InvalidInput):
        DatasetSpec(size, length)


@pytest.mark.parametrize(("length", "count"), [(1, MAX_REQUEST_SAMPLES + 1), (2**20, MAX_REQUEST_BYTES // 2**21 + 1)])
def test_request_above_the_bounds_is_rejected_before_memory_is_taken(length: int, count: int) -> None:
    with pytest.raises(Rejected, match="at most"):
        DatasetSpec(2, length).empty_tokens(DataIds(7, 7 + count - 1))


def test_batch_of_fixed_length_shows_rows_without_a_copy() -> None:
    tokens = np.arange(12, dtype="<u2")
    batch = TokenBatch.fixed_length(tokens, 4)
    assert batch.sample_count == 3
    assert batch.offsets.tolist() == [0, 4, 8, 12]
    assert batch.rows().shape == (3, 4)
    assert np.shares_memory(batch.rows(), tokens)
    with pytest.raises(InvalidInput, match="different lengths"):
        TokenBatch(np.arange(5, dtype="<u2"), np.array([0, 2, 5])).rows()


@pytest.mark.parametrize(
    "parts",
    [
        {"offsets": [0, 4]},
        {"offsets": [1, 6]},
        {"offsets": []},
        {"offsets": [0, 4, 2, 6]},
        {"labels": [1, 2]},
        {"position_ids": [1, 2]},
        {"sequence_lengths": [4, 2]},
        {"sequence_lengths": [3, 2]},
    ],
)
def test_batch_whose_parts_do_not_fit_is_corrupt(parts: dict[str, list[int]]) -> None:
    arrays: dict[str, Any] = {
        "offsets": np.array([0, 3, 6]),
        **{name: np.array(values, dtype=np.int64) for name, values in parts.items()},
    }
    with pytest.raises(CorruptData):
        TokenBatch(np.arange(6, dtype="<u2"), **arrays)


EXTENTS = st.lists(
    st.builds(Extent, st.integers(0, 2), st.integers(0, 5000), st.integers(1, 600)), min_size=1, max_size=30
)


@given(EXTENTS, st.sampled_from([1, 3, 1000, 20_000]))
def test_ranges_bring_every_wanted_byte_to_its_place(extents: list[Extent], length: int) -> None:
    spec = DatasetSpec(2, length)
    files = [TokenFile(f"{number}", 0, 0, 128 * number) for number in range(3)]
    ranges = plan_ranges(extents, files, spec)
    assert all(one.stop - one.start <= MAX_RANGE_BYTES for one in ranges)
    brought = sorted((part.target, part.file, part.offset, part.length) for one in ranges for part in one.parts)
    target, wanted = 0, []
    for extent in extents:
        left, offset = extent.length * spec.sequence_bytes, 128 * extent.file + extent.sequence * spec.sequence_bytes
        while left:
            part = min(left, MAX_RANGE_BYTES)
            wanted.append((target, extent.file, offset, part))
            target, offset, left = target + part, offset + part, left - part
    assert brought == wanted
    assert all(
        part.file == one.file and one.start <= part.offset and part.offset + part.length <= one.stop
        for one in ranges
        for part in one.parts
    )


def test_ranges_of_neighbours_and_small_gaps_are_one_request() -> None:
    spec, files = DatasetSpec(2, 1024), [TokenFile("a.bin", 0, 0, 0)]
    gap = MAX_GAP_BYTES // spec.sequence_bytes
    near = [Extent(0, 8, 4), Extent(0, 0, 8), Extent(0, 12 + gap, 1)]
    assert [(one.start, one.stop) for one in plan_ranges(near, files, spec)] == [(0, (13 + gap) * 2048)]
    assert len(plan_ranges([Extent(0, 0, 8), Extent(0, 8 + gap + 1, 1)], files, spec)) == 2
