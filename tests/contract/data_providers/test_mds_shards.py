"""MDS shards that are compressed, or whose samples differ in length: read as what they hold, or refused by name."""

import bz2
import gzip
import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.formats import mds_table
from epochal.data_providers.open_data import open_described
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.open_files import open_local_tokens, open_samples, open_tokens
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.providers.token_records import TokenRecordsDataProvider
from epochal.data_providers.sources import index_hashes, unpacked
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.cached_source import CachedSource
from epochal.data_providers.sources.derived_files import DataSpool
from epochal.data_providers.sources.http.source import HttpSource
from epochal.data_providers.sources.index_hashes import XXHASHES
from epochal.state.config.data_file import parse_data_config
from epochal.state.intervals import DataIds
from tests.support.data.data_formats import write_mds
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, http_server
from tests.support.servers.data_server import open_client, serving

SPEC = DatasetSpec(2, 8)


def pack(kind: str, data: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(data, mtime=0)
    if kind == "bz2":
        return bz2.compress(data)
    need_module("zstandard")
    import zstandard

    return zstandard.compress(data)


def compress_shards(folder: Path, kind: str, named: str, change: Callable[[Any], object] = lambda entry: None) -> None:
    """Replace the folder's shards by compressed ones, as MosaicML's writer does with `compression=named`."""
    index = json.loads((folder / "index.json").read_text())
    for entry in index["shards"]:
        raw = folder / entry["raw_data"]["basename"]
        data = raw.read_bytes()
        packed = pack(kind, data)
        raw.unlink()
        name = f"{raw.name}.{kind}"
        (folder / name).write_bytes(packed)
        hashes = {"sha1": hashlib.sha1(packed).hexdigest(), "of a later version": "0" * 16}
        entry["raw_data"]["hashes"] = {"sha256": hashlib.sha256(data).hexdigest()}
        entry |= {"compression": named, "zip_data": {"basename": name, "bytes": len(packed), "hashes": hashes}}
        change(entry)
    (folder / "index.json").write_text(json.dumps(index))


def rows_of(count: int, length: int, begin: int = 0) -> Any:
    return np.arange(begin, begin + count * length, dtype="<u2").reshape(count, length)


def samples_of(lengths: list[int], dtype: str = "<u2") -> list[Any]:
    """Arrays of these lengths whose tokens count up."""
    ends = np.cumsum([0, *lengths])
    return [np.arange(a, b).astype(dtype) for a, b in pairwise(ends)]


async def tokens_of(provider: Any) -> list[int]:
    count = provider.sequence_count
    found = (await provider.get_samples(DataIds(0, count - 1))).input_ids.tolist()
    await provider.aclose()
    return list(found)


@pytest.mark.parametrize(
    ("kind", "named"),
    [("gz", "gz"), ("gz", "gz:9"), ("bz2", "bz2:1"), ("zstd", "zstd:7")],
)
async def test_compressed_shards_hold_what_the_plain_ones_hold(tmp_path: Path, kind: str, named: str) -> None:
    write_mds(tmp_path / "plain", [rows_of(40, 16), rows_of(20, 16, 640)])
    write_mds(tmp_path / "packed", [rows_of(40, 16), rows_of(20, 16, 640)])
    compress_shards(tmp_path / "packed", kind, named)
    spec = DatasetSpec(2, 8, bytes(32))
    plain = await open_local_tokens(tmp_path / "plain", spec)
    packed = await open_local_tokens(tmp_path / "packed", spec)
    assert isinstance(packed, RangedDataProvider)
    assert packed.fingerprint == plain.fingerprint
    found = await tokens_of(packed)
    assert found == await tokens_of(plain)
    assert sorted(found) == list(range(960))


async def test_compressed_shards_over_http_are_kept_beside_the_blocks(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_mds(folder, [rows_of(40, 16)])
    compress_shards(folder, "gz", "gz")
    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES)
    server = FileServer(folder)
    async with http_server(server) as url:
        for _ in range(2):
            source = await HttpSource.open([f"{url}/a/index.json", f"{url}/a/shard.00000.mds.gz"])
            cached = CachedSource(source, cache)
            provider = await open_tokens(cached, SPEC, lambda: DataSpool(tmp_path / "cache" / "unpacked"))
            assert await tokens_of(provider) == list(range(640))
            fetched = cached.fetched_bytes
    assert fetched == 0
    assert len(list((tmp_path / "cache" / "unpacked").iterdir())) == 1


def spoil(**changes: Any) -> Callable[[Any], object]:
    def change(entry: Any) -> None:
        for path, value in changes.items():
            part, _, key = path.partition("__")
            entry[part] = value if not key else entry[part] | {key: value}

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (spoil(compression="lzo:3"), Rejected, "compression 'lzo:3' is not supported; allowed: bz2, gz, xz"),
        (spoil(compression=None), Rejected, "compression 'None' is not supported"),
        (spoil(zip_data__bytes=3), CorruptData, "index.json says 3"),
        (spoil(zip_data__basename="../../etc/passwd"), CorruptData, "etc/passwd, which does not exist"),
        (spoil(zip_data__hashes={"sha1": "0" * 40}), CorruptData, "has sha1 [0-9a-f]{40}; its index says 0000"),
        (spoil(raw_data__hashes={"sha256": "0" * 64}), CorruptData, "unpacked, has sha256"),
        (spoil(raw_data__bytes=700), CorruptData, "unpacks to more than the 700 bytes of its index"),
        (spoil(raw_data__bytes=10**6), CorruptData, "unpacks to [0-9]+ bytes; its index says 1000000"),
        (spoil(raw_data__bytes=2**60), CorruptData, "allowed: 0 to 4294967295 bytes"),
        (spoil(raw_data__bytes=-1), CorruptData, "allowed: 0 to"),
    ],
)
async def test_compressed_shard_that_contradicts_its_index_is_refused(
    tmp_path: Path, change: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    write_mds(tmp_path, [rows_of(40, 16)])
    compress_shards(tmp_path, "gz", "gz", change)
    with pytest.raises(error, match=message):
        await tokens_of(await open_local_tokens(tmp_path, SPEC))


@pytest.mark.parametrize("name", sorted(XXHASHES))
async def test_hashes_of_xxhash_are_compared(tmp_path: Path, name: str) -> None:
    need_module("xxhash")
    hash_of = getattr(importlib.import_module("xxhash"), name)
    write_mds(tmp_path, [rows_of(40, 16)])

    def hashed(entry: Any) -> None:
        packed = (tmp_path / entry["zip_data"]["basename"]).read_bytes()
        entry["zip_data"]["hashes"] = {name: hash_of(packed).hexdigest()}

    compress_shards(tmp_path, "gz", "gz", hashed)
    assert await tokens_of(await open_local_tokens(tmp_path, SPEC)) == list(range(640))
    index = json.loads((tmp_path / "index.json").read_text())
    right = index["shards"][0]["zip_data"]["hashes"][name]
    (tmp_path / "index.json").write_text(json.dumps(index).replace(right, "0" * len(right)))
    with pytest.raises(CorruptData, match=f"has {name} {right}; its index says 0000"):
        await tokens_of(await open_local_tokens(tmp_path, SPEC))


async def test_hashes_that_cannot_be_compared_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)  # as where it is not installed
    monkeypatch.setattr(index_hashes, "_said", set())
    write_mds(tmp_path, [rows_of(40, 16), rows_of(20, 16, 640)])
    compress_shards(tmp_path, "gz", "gz", spoil(zip_data__hashes={"xxh64": "0" * 16, "shake_128": "0"}))
    assert await tokens_of(await open_local_tokens(tmp_path, SPEC)) == list(range(960))
    said = [record.__dict__ for record in caplog.records if record.message == "hashes_not_compared"]
    assert [one["algorithms"] for one in said] == ["shake_128, xxh64"]
    assert "xxh64: pip install" in said[0]["note"]


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:50] + b"garbage" + data[57:]])
async def test_damaged_archive_is_corrupt_and_leaves_nothing_behind(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    folder, place = tmp_path / "data", tmp_path / "unpacked"
    write_mds(folder, [rows_of(40, 16)])
    compress_shards(folder, "gz", "gz")
    (path,) = folder.glob("*.gz")
    path.write_bytes(damage(path.read_bytes()))
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["zip_data"] |= {"bytes": path.stat().st_size, "hashes": {}}
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptData, match="cannot be unpacked as gz"):
        await open_local_tokens(folder, SPEC, lambda: DataSpool(place))
    assert list(place.iterdir()) == []


async def test_bomb_is_refused_at_the_limit_of_the_spool(tmp_path: Path) -> None:
    write_mds(tmp_path, [rows_of(4000, 16)])
    compress_shards(tmp_path, "gz", "gz")
    with pytest.raises(Rejected, match=r"unpacks to more than 65536 bytes, the limit .* --cache-bytes"):
        await open_local_tokens(tmp_path, SPEC, lambda: DataSpool(max_bytes=65536))


async def test_shards_give_way_to_each_other_in_a_small_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "MAX_PREFIX_BYTES", 100)  # the offset table is behind that: shards are unpacked whole
    folder, place = tmp_path / "data", tmp_path / "unpacked"
    write_mds(folder, [rows_of(40, 16, 640 * number) for number in range(5)])
    compress_shards(folder, "gz", "gz")
    provider = await open_local_tokens(folder, SPEC, lambda: DataSpool(place, 3 * 1800))
    assert await tokens_of(provider) == list(range(3200))
    assert sum(path.stat().st_size for path in place.iterdir()) <= 3 * 1800


@pytest.mark.parametrize(("encoding", "dtype"), [("bytes", "<u2"), ("ndarray:uint16", "<u2"), ("ndarray:int32", "<i4")])
@pytest.mark.parametrize("extra_column", [False, True])
async def test_samples_of_any_length_are_one_stream_of_tokens(
    tmp_path: Path, encoding: str, dtype: str, extra_column: bool
) -> None:
    shards = [samples_of([5, 1, 0, 300, 8, 70_000, 3], dtype), samples_of([2, 2, 2, 1], dtype)]
    write_mds(tmp_path, shards, encoding, extra_column)
    spec = DatasetSpec(np.dtype(dtype).itemsize, 8)
    provider = await open_local_tokens(tmp_path, spec)
    assert isinstance(provider, RangedDataProvider)
    assert provider.order.dropped_tokens == {"shard.00000.mds": 5, "shard.00001.mds": 7}
    total = 70_317 // 8 * 8
    assert await tokens_of(provider) == np.arange(total).astype(spec.dtype).tolist()


async def test_shuffled_stream_is_that_of_the_same_tokens_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mds(tmp_path / "mds", [samples_of([5, 1, 0, 300, 8, 700, 3])], "ndarray:uint16")
    (tmp_path / "plain").mkdir()
    np.arange(1017, dtype="<u2").tofile(tmp_path / "plain" / "a.bin")
    spec = DatasetSpec(2, 8, bytes(32))
    monkeypatch.setattr(mds_table, "MAX_TABLE_BYTES", 1)
    stream, plain = await open_local_tokens(tmp_path / "mds", spec), await open_local_tokens(tmp_path / "plain", spec)
    assert await tokens_of(stream) == await tokens_of(plain)


@pytest.mark.parametrize("kind", ["", "gz"])
async def test_packing_takes_each_sample_as_it_is(tmp_path: Path, kind: str) -> None:
    lengths = [5, 1, 0, 300, 8, 700, 3]
    write_mds(tmp_path, [samples_of(lengths), samples_of([4, 4])], "ndarray:uint16", extra_column=True)
    if kind:
        compress_shards(tmp_path, kind, kind)
    provider = await open_samples(LocalSource.open(tmp_path), SPEC, DataSpool)
    assert isinstance(provider, TokenRecordsDataProvider)
    assert provider.sequence_count == 9
    batch = await provider.get_samples(DataIds(2, 10))
    assert np.diff(batch.offsets).tolist() == [0, 300, 8, 700, 3, 4, 4, 5, 1]
    assert batch.input_ids.tolist() == [*range(6, 1017), *range(8), *range(6)]
    await provider.aclose()


async def test_table_that_changes_under_the_run_is_corrupt(tmp_path: Path) -> None:
    write_mds(tmp_path, [samples_of([5, 1, 8, 12])], "bytes")
    provider = await open_local_tokens(tmp_path, SPEC)
    path = tmp_path / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[8:12] = data[4:8]
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=r"shard\.00000\.mds"):
        await tokens_of(provider)


async def test_data_server_serves_compressed_samples_of_any_length(tmp_path: Path) -> None:
    write_mds(tmp_path / "mds", [samples_of([5, 1, 0, 300, 8, 700, 3])], "ndarray:uint16")
    compress_shards(tmp_path / "mds", "gz", "gz")
    config = parse_data_config('dir = "mds"\ntoken_size = 2\nseq_len = 8\n', "data.toml")
    source = await open_described(config, tmp_path)
    async with serving(source, spec=source.order.spec) as (_, address):
        client = await open_client(address)
        assert client.fingerprint == source.fingerprint
        assert await tokens_of(client) == list(range(1016))
    await source.aclose()


async def test_compressed_shards_in_folders_below_are_found(tmp_path: Path) -> None:
    for number in range(2):
        write_mds(tmp_path / f"{number}", [rows_of(4, 8, 32 * number)])
        compress_shards(tmp_path / f"{number}", "gz", "gz")
    assert await tokens_of(await open_local_tokens(tmp_path, SPEC)) == list(range(64))
