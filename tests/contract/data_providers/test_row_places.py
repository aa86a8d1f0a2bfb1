"""Rows of parquet and Arrow files, on a disk, over HTTP and in a bucket; and Arrow files that are wrong."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.data_providers.formats import columns
from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_files, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Preprocessed, Urls
from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import open_rows
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, http_server

ROWS = [[number, number + 1] * (number % 5) for number in range(200)]
SPEC = DatasetSpec(2, 16)
PLAIN, PACKED = OpenOptions("run", None, OWNERS), OpenOptions("run", None, OWNERS, packs=True)
Write = Callable[..., bytes]


def table_of(**held: list[Any]) -> Any:
    need_module("pyarrow")
    import pyarrow

    return pyarrow.table(held)


def parquet(table: Any) -> bytes:
    import pyarrow.parquet

    found = io.BytesIO()
    pyarrow.parquet.write_table(table, found, row_group_size=30)
    return found.getvalue()


def arrow_file(table: Any, compression: str | None = None) -> bytes:
    import pyarrow

    found, options = io.BytesIO(), pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_file(found, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=30)
    return found.getvalue()


def arrow_stream(table: Any) -> bytes:
    import pyarrow

    found = io.BytesIO()
    with pyarrow.ipc.new_stream(found, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    return found.getvalue()


def feather(table: Any) -> bytes:
    import pyarrow.feather

    found = io.BytesIO()
    pyarrow.feather.write_feather(table, found, chunksize=30)
    return found.getvalue()


KINDS: dict[str, tuple[str, Write]] = {
    "parquet": (".parquet", parquet),
    "arrow file": (".arrow", arrow_file),
    "arrow stream": (".arrow", arrow_stream),
    "feather": (".feather", feather),
    "zstd arrow": (".arrow", lambda table: arrow_file(table, "zstd")),
}
every_kind = pytest.mark.parametrize(("suffix", "write"), KINDS.values(), ids=KINDS)


async def samples(provider: Any, start: int = 0, end: int = 199) -> list[list[int]]:
    batch = await provider.get_samples(DataIds(start, end))
    return [batch.input_ids[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


@every_kind
async def test_rows_are_read_alike_on_a_disk_over_http_and_in_a_bucket(
    tmp_path: Path, suffix: str, write: Write
) -> None:
    need_module("obstore")
    from obstore.store import LocalStore

    folder = tmp_path / "data"
    folder.mkdir()
    name = f"train{suffix}"
    (folder / name).write_bytes(write(table_of(inputs=ROWS, labels=ROWS)))
    local = await open_location(parse_location(str(folder / name)), SPEC, PLAIN)
    assert await samples(local) == ROWS
    server = FileServer(folder)
    async with http_server(server) as url:
        places = [parse_location(f"{url}/{name}"), Preprocessed(f"{url}/{name}"), Urls((f"{url}/{name}?x=1",))]
        providers = [await open_location(place, SPEC, PLAIN) for place in places]
        bucket = await ObjectStoreSource.over(LocalStore(tmp_path), "file://", "data")
        providers.append(await open_files(bucket, SPEC, PLAIN, listed=True))
        for provider in providers:
            assert isinstance(provider, PreprocessedDataProvider)
            assert provider.fingerprint == local.fingerprint
            assert await samples(provider, 30, 120) == ROWS[30:121]
            await provider.aclose()


@every_kind
async def test_rows_without_tokens_are_records_where_a_run_packs(tmp_path: Path, suffix: str, write: Write) -> None:
    held = [{"messages": [{"role": "user", "content": f"né {number}"}], "id": number} for number in range(200)]
    table = table_of(
        messages=[row["messages"] for row in held], id=[row["id"] for row in held], picture=[b"\xff\xfe"] * 200
    )
    path = tmp_path / f"train{suffix}"
    path.write_bytes(write(table))
    provider = await open_location(parse_location(str(path)), SPEC, PACKED)
    batch = await provider.get_samples(DataIds(0, 199))
    assert batch.is_text
    text = batch.input_ids.astype(np.uint8).tobytes()
    assert [json.loads(text[a:b]) for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)] == held
    with pytest.raises(CorruptData, match="one must be 'inputs', as the run does not pack"):
        await open_location(parse_location(str(path)), SPEC, PLAIN)


async def test_few_bytes_of_a_large_parquet_file_are_fetched(tmp_path: Path) -> None:
    rows = np.random.default_rng(7).integers(0, 2**31, (400, 2000)).tolist()
    (tmp_path / "a.parquet").write_bytes(parquet(table_of(inputs=rows, unwanted=rows)))
    server, served = FileServer(tmp_path), 0

    async def count(request: Any) -> Any:
        nonlocal served
        reply = await server(request)
        served += len(reply.body)
        return reply

    async with http_server(count) as url:
        provider = await open_location(parse_location(f"{url}/a.parquet"), DatasetSpec(4, 2000), PLAIN)
        requests, opened_bytes = len(server.requests), served
        assert await samples(provider, 100, 109) == rows[100:110]
        await provider.aclose()
    assert opened_bytes < 200_000
    assert served - opened_bytes < 30 * 2000 * 10
    assert len(server.requests) - requests <= 6


async def test_row_file_that_changes_over_http_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(table_of(inputs=ROWS)))
    async with http_server(FileServer(tmp_path)) as url:
        provider = await open_location(parse_location(f"{url}/a.parquet"), SPEC, PLAIN)
        (tmp_path / "a.parquet").write_bytes(parquet(table_of(inputs=ROWS[::-1])))
        with pytest.raises(CorruptData, match="changed"):
            await samples(provider)
        await provider.aclose()


def test_places_of_rows_are_checked() -> None:
    with pytest.raises(ValueError, match="neither a path nor a place of rows"):
        Preprocessed("ftp://host/a.parquet")
    with pytest.raises(InvalidInput, match="allowed: hf://datasets/NAME"):
        parse_location("hf://models/a")


# Arrow files that are wrong


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


async def test_arrow_batch_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = arrow_file(table_of(inputs=[[7] * 5000] * 20), "zstd")
    assert len(data) < 50_000
    monkeypatch.setattr(columns, "MAX_ROW_GROUP_BYTES", 500_000)
    with pytest.raises(CorruptData, match=r"row group 0 has \d+ bytes or more; at most 500000"):
        await (await open_rows(written(tmp_path / "a.arrow", data), packs=True)).get_samples(DataIds(0, 0))


async def test_arrow_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow

    path = tmp_path / "a.arrow"
    whole = arrow_stream(table_of(inputs=ROWS))
    coded = pyarrow.table({"text": pyarrow.array(["a", "b", "a"]).dictionary_encode()})
    for data, message in [
        (b"FEA1" + bytes(50), "is Feather version 1"),
        (b"", "is not an Arrow file"),
        (b"ARROW1\0\0", "is not an Arrow file, or is cut off"),
        (whole[:-100], "is cut off|is not an Arrow file"),
        (whole[:1000], "is cut off|is not an Arrow file"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1), "has a head of 2147483647 bytes"),
        (arrow_file(coded), "encoded by a dictionary; not supported"),
        (
            arrow_stream(table_of(other=ROWS)).replace(b"other", b"\x80ther"),
            r"a column whose name is not UTF-8: b'\\x80",
        ),
    ]:
        with pytest.raises(CorruptData, match=message):
            await open_rows(written(path, data), packs=True)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=5),
    cut=st.none() | st.integers(0, 3000),
    kind=st.sampled_from(["arrow file", "arrow stream", "zstd arrow"]),
)
async def test_damaged_arrow_file_is_read_or_refused(
    tmp_path: Path, changes: list[tuple[int, int]], cut: int | None, kind: str
) -> None:
    suffix, write = KINDS[kind]
    data = bytearray(write(table_of(inputs=ROWS[:40])))
    for at, value in changes:
        data[at % len(data)] = value
    try:
        provider = await open_rows(written(tmp_path / f"a{suffix}", bytes(data[:cut])), packs=True)
        await provider.get_samples(DataIds(0, provider.sequence_count - 1))
    except DataError:
        return
