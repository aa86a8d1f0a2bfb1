"""Megatron's and MosaicML's files: read as they were written, and every damage named. The readers are fuzzed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.formats.mds_table import RecordsFile, records_of
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.ranged import Layout
from epochal.state.errors import DataError
from epochal.state.intervals import DataIds
from tests.support.data.data_formats import discovered, write_mds, write_megatron

SPEC = DatasetSpec(2, 8)
FOUR_BYTES = DatasetSpec(4, 8)


def rows_of(count: int, length: int, dtype: str = "<u2", begin: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(begin, begin + count * length, dtype=dtype).reshape(count, length)


async def all_tokens(folder: Path, spec: DatasetSpec = SPEC) -> list[int]:
    provider = LocalDataProvider.open(folder, spec)
    batch = await provider.get_samples(DataIds(0, provider.sequence_count - 1))
    await provider.aclose()
    found: list[int] = batch.input_ids.tolist()
    return found


@pytest.mark.parametrize(("dtype", "spec"), [("<u2", SPEC), ("<i2", SPEC), ("<i4", FOUR_BYTES)])
async def test_megatron_documents_are_one_stream_of_tokens(tmp_path: Path, dtype: str, spec: DatasetSpec) -> None:
    tokens = np.arange(50, dtype=dtype)
    write_megatron(tmp_path, "text_document", [tokens[:3], tokens[3:31], tokens[31:]])
    assert await all_tokens(tmp_path, spec) == list(range(48))
    assert await all_tokens(tmp_path / "text_document.bin", spec) == list(range(48))


def damaged(change: Callable[[dict[str, bytes]], object]) -> Callable[[Path], dict[str, bytes]]:
    def files(folder: Path) -> dict[str, bytes]:
        write_megatron(folder, "a", [np.arange(20, dtype="<u2"), np.arange(12, dtype="<u2")])
        held = {path.name: path.read_bytes() for path in folder.iterdir()}
        change(held)
        return held

    return files


def put(name: str, at: int, data: bytes) -> Callable[[dict[str, bytes]], object]:
    return lambda held: held.update({name: held[name][:at] + data + held[name][at + len(data) :]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (damaged(lambda held: held.pop("a.bin")), "is the index of a.bin, which does not exist"),
        (damaged(lambda held: held.update({"a.bin": held["a.bin"][:-2]})), "a.bin has 62 bytes; a.idx says 64"),
        (damaged(lambda held: held.update({"a.bin": held["a.bin"] + b"xx"})), "a.bin has 66 bytes; a.idx says 64"),
        (damaged(lambda held: held.update({"a.idx": held["a.idx"][:-1]})), "its header says"),
        (damaged(lambda held: held.update({"a.idx": held["a.idx"][:20]})), "allowed: 34 or more"),
        (damaged(lambda held: held.update({"a.idx": b""})), "allowed: 34 or more"),
        (damaged(lambda held: held.update({"a.idx": b"MMID"})), "allowed: 34 or more"),
        (damaged(put("a.idx", 9, b"\x02")), "version 2; allowed: 1"),
        (damaged(put("a.idx", 17, b"\x04")), "holds int32; allowed: int16 or uint16"),
        (damaged(put("a.idx", 17, b"\xff")), "holds type 255"),
        (damaged(put("a.idx", 18, b"\xff" * 8)), "its header says"),
    ],
)
def test_megatron_files_that_do_not_belong_together_are_corrupt(
    tmp_path: Path, files: Callable[[Path], dict[str, bytes]], message: str
) -> None:
    with pytest.raises(CorruptData, match=message):
        discovered(files(tmp_path))


def test_bin_beside_another_kind_of_idx_is_nothing_but_tokens() -> None:
    assert [file.token_count for file in discovered({"a.bin": bytes(64), "a.idx": b"something else"})] == [32]


@pytest.mark.parametrize("encoding", ["", "bytes"])
@pytest.mark.parametrize("extra_column", [False, True])
@pytest.mark.parametrize(("dtype", "spec"), [("<u2", SPEC), ("<u4", FOUR_BYTES)])
@pytest.mark.parametrize("length", [8, 24])
async def test_mds_samples_are_read_in_order_whatever_stands_between_them(
    tmp_path: Path, encoding: str, extra_column: bool, dtype: str, spec: DatasetSpec, length: int
) -> None:
    shards = [rows_of(5, length, dtype), rows_of(3, length, dtype, 5 * length)]
    write_mds(tmp_path, shards, encoding, extra_column)
    assert await all_tokens(tmp_path, spec) == list(range(8 * length))


@pytest.mark.parametrize(
    ("dtype", "length"), [("<u2", 8), ("<u2", 248), ("<u2", 256), ("<i4", 248), ("<i4", 65_528), ("<u2", 65_536)]
)
async def test_mds_samples_that_say_their_own_shape_are_read(tmp_path: Path, dtype: str, length: int) -> None:
    rows = np.arange(3 * length).astype(dtype).reshape(3, length)
    write_mds(tmp_path, [rows], f"ndarray:{rows.dtype.name}", extra_column=True)
    spec = DatasetSpec(rows.dtype.itemsize, 8)
    assert await all_tokens(tmp_path, spec) == rows.reshape(-1).astype(spec.dtype).tolist()


@pytest.mark.parametrize(("at", "value"), [(0, 8), (0, 5), (1, 9)])
def test_mds_samples_of_another_shape_are_corrupt(tmp_path: Path, at: int, value: int) -> None:
    files = mds_files(tmp_path, lambda index: None, encoding="ndarray:uint16")
    (whole,) = discovered(files)
    shard = bytearray(files[whole.name])
    shard[whole.data_offset_bytes - 2 + at] = value
    with pytest.raises(CorruptData, match="not arrays of one dimension"):
        discovered(files | {whole.name: bytes(shard)})


def test_mds_samples_that_no_shape_explains_are_corrupt(tmp_path: Path) -> None:
    write_mds(tmp_path, [rows_of(4, 257)], "bytes")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    files["index.json"] = files["index.json"].replace(b'"bytes"]', b'"ndarray:uint16"]')
    with pytest.raises(CorruptData, match="sample 0 has 518 bytes, which its columns do not explain"):
        discovered(files, DatasetSpec(2, 257))


def test_mds_merged_index_stands_for_the_folders_below_it(tmp_path: Path) -> None:
    parts = [write_mds(tmp_path / f"{number:05}", [rows_of(4, 8, begin=32 * number)]) for number in range(2)]
    for number, part in enumerate(parts):
        part["shards"][0]["raw_data"]["basename"] = f"{number:05}/shard.00000.mds"
    merged = {"version": 2, "shards": [part["shards"][0] for part in parts]}
    (tmp_path / "index.json").write_text(json.dumps(merged))
    assert asyncio.run(all_tokens(tmp_path)) == list(range(64))
    everything = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert [file.name for file in discovered(everything)] == ["00000/shard.00000.mds", "00001/shard.00000.mds"]


def test_mds_offsets_that_point_into_the_table_are_corrupt(tmp_path: Path) -> None:
    files = mds_files(tmp_path, lambda index: None)
    name = "shard.00000.mds"
    shard, stride = files[name], 16
    moved = b"".join((8 + stride * number).to_bytes(4, "little") for number in range(5))
    index = json.loads(files["index.json"])
    index["shards"][0]["raw_data"]["bytes"] = 8 + stride * 4
    spoiled = (shard[:4] + moved + shard[24:])[: 8 + stride * 4]
    with pytest.raises(CorruptData, match="offsets that do not ascend from its table"):
        discovered({"index.json": json.dumps(index).encode(), name: spoiled})


def mds_files(folder: Path, change: Callable[[Any], object], **options: Any) -> dict[str, bytes]:
    """The files of a small MDS dataset, its index changed."""
    index = write_mds(folder, [rows_of(4, 8)], **options)
    change(index)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {"index.json": json.dumps(index).encode()}


def shard_entry(**changes: Any) -> Callable[[Any], object]:
    return lambda index: index["shards"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda index: index.update(version=1), CorruptData, "version 1; allowed: 2"),
        (lambda index: index.pop("shards"), CorruptData, "not an MDS index"),
        (lambda index: index.update(shards="x"), CorruptData, "its shards are not a list"),
        (shard_entry(format="json"), Rejected, "format 'json'"),
        (shard_entry(raw_data={"basename": "gone.mds", "bytes": 1}), CorruptData, "gone.mds, which does not exist"),
        (shard_entry(raw_data={"basename": "shard.00000.mds", "bytes": 1}), CorruptData, "index.json says 1"),
        (shard_entry(samples=5), CorruptData, "does not begin with the offsets of 5 samples"),
        (shard_entry(samples=-1), CorruptData, "allowed: 0 to"),
        (shard_entry(column_names=["text"]), CorruptData, "one must be tokens or input_ids"),
        (shard_entry(column_encodings=["ndarray:float32:8"]), Rejected, "allowed: ndarray:uint16, ndarray:uint16:L"),
        (shard_entry(column_encodings=["ndarray"], column_sizes=[None]), Rejected, "has encoding 'ndarray'"),
        (shard_entry(column_encodings=["ndarray:uint32:4"]), Rejected, "has encoding 'ndarray:uint32:4'"),
        (shard_entry(column_encodings=["ndarray:uint16:" + "9" * 65]), Rejected, "has encoding"),
        (shard_entry(column_encodings=["ndarray:uint16:-2,-4"]), CorruptData, "has size 16"),
        (shard_entry(column_encodings=["ndarray:uint16"], column_sizes=[None]), CorruptData, "not arrays of one dim"),
        (shard_entry(column_sizes=[3]), CorruptData, "has size 3"),
        (shard_entry(column_encodings=["ndarray:uint16:6"], column_sizes=[12]), CorruptData, "index says 6"),
        (shard_entry(column_names=["tokens", "x"]), CorruptData, "not an MDS index"),
    ],
)
def test_mds_index_that_is_not_read_is_refused_by_name(
    tmp_path: Path, change: Callable[[Any], object], error: type[DataError], message: str
) -> None:
    with pytest.raises(error, match=message):
        discovered(mds_files(tmp_path, change))


def test_mds_other_sequence_length_or_truncated_shard_is_corrupt(tmp_path: Path) -> None:
    files = mds_files(tmp_path, lambda index: None)
    with pytest.raises(CorruptData, match="samples of 8 tokens; allowed: a multiple of the sequence length 5"):
        discovered(files, DatasetSpec(2, 5))
    files["shard.00000.mds"] = files["shard.00000.mds"][:-1]
    with pytest.raises(CorruptData, match=r"shard\.00000\.mds has \d+ bytes; index\.json says"):
        discovered(files)


def read_within_bounds_or_refused(files: dict[str, bytes]) -> None:
    try:
        found = discovered(files)
    except DataError:
        return
    for file in found:
        layout: Layout = file
        if isinstance(file, RecordsFile):
            layout = records_of(file.layout, files[file.name][: file.layout.header_bytes], SPEC)
        stretches = layout.stretches(0, file.token_count // 8, SPEC)
        assert all(offset >= 0 and offset + length <= file.size_bytes for offset, length in stretches)


@given(
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    cut=st.none() | st.integers(0, 400),
    name=st.sampled_from(["a.idx", "a.bin", "index.json", "shard.00000.mds", "b.npy"]),
)
def test_files_with_any_damage_are_read_within_their_bounds_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int | None, name: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    if not folder.exists():
        write_mds(folder / "mds", [rows_of(4, 8)])
        write_megatron(folder, "a", [np.arange(20, dtype="<u2"), np.arange(12, dtype="<u2")])
        np.save(folder / "b.npy", np.arange(40, dtype="<u2"))
    place = folder / "mds" if name in ("index.json", "shard.00000.mds") else folder
    files = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    spoiled = bytearray(files[name])
    for at, value in changes:
        spoiled[at % len(spoiled)] = value
    read_within_bounds_or_refused(files | {name: bytes(spoiled[:cut])})


WRONG_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 10**30, 1.5, float("inf"), float("nan"), True, "", "../x", "ndarray:uint16:0", [], {}, [[]], [None]]
)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within nested lists and dictionaries."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, held in inner for path in [(*above, key), *places(held, (*above, key))]]


@given(data=st.data(), encoding=st.sampled_from(["", "bytes", "ndarray:uint16"]))
def test_mds_index_with_any_value_wrong_is_read_within_bounds_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, encoding: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"index-{encoding.replace(':', '-')}"
    index = write_mds(folder, [rows_of(4, 8), rows_of(2, 8)], encoding, extra_column=True)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    *above, last = data.draw(st.sampled_from(places(index)))
    holder: Any = index
    for key in above:
        holder = holder[key]
    holder[last] = data.draw(WRONG_VALUES)
    read_within_bounds_or_refused(files | {"index.json": json.dumps(index).encode()})
