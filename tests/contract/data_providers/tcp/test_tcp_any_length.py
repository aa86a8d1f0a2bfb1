"""Samples of any length over TCP: the same as from the files themselves and over HTTP, packed into the same rows."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.batching.packing.packed_batches import Packing
from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.open_data import OpenOptions, open_described, open_location, open_provider, served_shape
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, TokenBatch
from epochal.data_providers.tcp import data_client, payloads
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.data_file import parse_data_config
from epochal.state.config.data_location import Local, Urls
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError
from epochal.state.intervals import BatchId, DataIds
from tests.support.data.data_files import write_dataset
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, http_server
from tests.support.servers.data_server import HOST, serving

SPEC = DatasetSpec(2, 16)
SEED = list(range(32))
RECORDS = [
    {"text": "é" * (number % 7)} if number % 3 else {"prompt": f"{number}?", "completion": "so " * (number % 11)}
    for number in range(60)
]


def write_lines(folder: Path, records: Sequence[Any] = RECORDS) -> None:
    folder.mkdir(parents=True)
    text = [json.dumps(record, ensure_ascii=False) for record in records]
    (folder / "a.jsonl").write_text("\n".join(text[:25]), encoding="utf-8")
    (folder / "b.jsonl").write_text("\n".join(text[25:]), encoding="utf-8")


def write_rows(folder: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    inputs = [list(range(number % 13)) for number in range(60)]
    labels = [[-100 if at % 2 else 255 for at in row] for row in inputs]
    lengths = [[len(row)] if row else [] for row in inputs]
    table = pyarrow.table({"inputs": inputs, "labels": labels, "sequence_lengths": lengths})
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(table, folder / "train.parquet", row_group_size=7)


def packing_state(location: Any) -> StateFile:
    return state_file(
        model__LLM__data_type="Finetuning",
        model__LLM__max_seq_len=32,
        model__LLM__data_location=location,
        packing={"oversized": "split", "pool_size": 5},
    )


def equal(one: TokenBatch, other: TokenBatch) -> bool:
    names = ("input_ids", "offsets", "labels", "position_ids", "sequence_lengths", "is_text", "source_count")
    for name in names:
        first, second = getattr(one, name), getattr(other, name)
        if getattr(first, "dtype", None) != getattr(second, "dtype", None) or not np.array_equal(first, second):
            return False
    return True


async def rows_of(provider: DataProvider, state: StateFile) -> list[TokenBatch]:
    """The rows of an assignment, as a client packs them."""
    worker = WorkerThread("test-packing")
    packing = Packing.of(state, 256, worker, OWNERS)
    assert packing is not None
    assignment = (BatchId(1, 40), BatchId(49, 49))
    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(provider, FetchSettings.of(state), lambda: 0.5, 256).fetch_data(assignment, group)
        rows = packing.rows_of(assignment, receiver)
        found = [row async for row in rows]
    assert rows.token_count == sum(len(row.input_ids) for row in found)
    await worker.aclose()
    return found


def described(folder: Path, *lines: str) -> str:
    text = "\n".join((f'dir = "{folder.name}"', *lines))
    (folder.parent / "data.toml").write_text(text, encoding="utf-8")
    return text


async def served(stack: AsyncExitStack, folder: Path, *lines: str) -> tuple[DataProvider, int]:
    config = parse_data_config(described(folder, *lines), "data.toml")
    files = await open_described(config, folder.parent)
    stack.push_async_callback(files.aclose)
    _, address = await stack.enter_async_context(serving(files, spec=served_shape(config, files)))
    return files, address.port


async def opened_over_tcp(stack: AsyncExitStack, port: int) -> DataProvider:
    provider = await open_provider(packing_state({"Server": f"{HOST}:{port}"}), lambda: "good", OWNERS)
    stack.push_async_callback(provider.aclose)
    assert isinstance(provider, TcpDataProvider)
    return provider


@pytest.mark.parametrize("write", [write_lines, write_rows])
@pytest.mark.parametrize("piece_bytes", [1, 300, 2**20])
async def test_samples_and_rows_are_those_of_the_files_and_of_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, piece_bytes: int
) -> None:
    monkeypatch.setattr(data_client, "PIECE_BYTES", piece_bytes)
    write(tmp_path / "data")
    options = OpenOptions("a-run", None, OWNERS, packs=True)
    async with AsyncExitStack() as stack:
        files, port = await served(stack, tmp_path / "data")
        over_tcp = await opened_over_tcp(stack, port)
        url = await stack.enter_async_context(http_server(FileServer(tmp_path / "data")))
        names = sorted(path.name for path in (tmp_path / "data").iterdir())
        over_http = await open_location(Urls(tuple(f"{url}/{name}" for name in names)), SPEC, options)
        local = await open_location(Local(str(tmp_path / "data")), SPEC, options)
        for one in (over_http, local):
            stack.push_async_callback(one.aclose)
        assert files.fingerprint == over_tcp.fingerprint == local.fingerprint
        assert over_tcp.sequence_count == local.sequence_count == 60
        for ids in (DataIds(0, 0), DataIds(3, 59), DataIds(50, 70), DataIds(118, 245)):
            expected = await local.get_samples(ids)
            assert equal(await over_tcp.get_samples(ids), expected)
        state = packing_state("Dummy")
        expected_rows = await rows_of(local, state)
        for provider in (over_tcp, over_http):
            found = await rows_of(provider, state)
            assert len(found) == len(expected_rows) > 3
            assert all(map(equal, found, expected_rows))


async def test_shuffle_of_the_data_file_is_the_orders(tmp_path: Path) -> None:
    write_lines(tmp_path / "data")
    async with AsyncExitStack() as stack:
        files, port = await served(stack, tmp_path / "data", f"shuffle_seed = {SEED}")
        over_tcp = await opened_over_tcp(stack, port)
        state, path = packing_state("Dummy"), str(tmp_path / "data.toml")
        same = await open_provider(state, lambda: "", OWNERS, path)
        plain = await open_provider(state, lambda: "", OWNERS, str(tmp_path / "data"))
        for one in (same, plain):
            stack.push_async_callback(one.aclose)
        assert files.fingerprint == over_tcp.fingerprint == same.fingerprint != plain.fingerprint
        ids = DataIds(0, 59)
        assert equal(await over_tcp.get_samples(ids), await same.get_samples(ids))
        assert not equal(await over_tcp.get_samples(ids), await plain.get_samples(ids))


async def test_answers_that_do_not_fit_a_frame_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "MAX_SAMPLES_BYTES", 500)
    records = [{"text": "x" * (400 if number % 10 == 9 else 1)} for number in range(60)]
    write_lines(tmp_path / "data", records)
    async with AsyncExitStack() as stack:
        files, port = await served(stack, tmp_path / "data")
        over_tcp = await opened_over_tcp(stack, port)
        assert equal(await over_tcp.get_samples(DataIds(0, 59)), await files.get_samples(DataIds(0, 59)))


async def test_sample_that_fits_no_frame_is_corrupt_data_with_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "MAX_SAMPLES_BYTES", 500)
    write_lines(tmp_path / "data", [{"text": "x" * (600 if number == 7 else 1)} for number in range(60)])
    async with AsyncExitStack() as stack:
        _, port = await served(stack, tmp_path / "data")
        over_tcp = await opened_over_tcp(stack, port)
        with pytest.raises(CorruptData, match=r"data index 7 has 6\d\d bytes; a data server sends at most 500"):
            await over_tcp.get_samples(DataIds(0, 59))
        assert (await over_tcp.get_samples(DataIds(8, 9))).sample_count == 2


async def test_server_of_tokens_is_refused_where_the_run_packs(tmp_path: Path) -> None:
    write_dataset(tmp_path / "tokens")
    async with AsyncExitStack() as stack:
        _, port = await served(
            stack, tmp_path / "tokens", 'token_size = "TwoBytes"', f"seq_len = {SPEC.sequence_length}"
        )
        with pytest.raises(CorruptData, match="samples of 16 tokens, the run's have any length"):
            await open_provider(packing_state({"Server": f"{HOST}:{port}"}), lambda: "good", OWNERS)


async def test_server_of_records_is_refused_where_the_run_does_not_pack(tmp_path: Path) -> None:
    write_lines(tmp_path / "data")
    async with AsyncExitStack() as stack:
        _, port = await served(stack, tmp_path / "data")
        state = state_file(model__LLM__data_location={"Server": f"{HOST}:{port}"})
        with pytest.raises(CorruptData, match="serves samples of any length, the run's have 16 tokens"):
            await open_provider(state, lambda: "good", OWNERS)


async def test_folder_without_samples_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.bin").write_bytes(bytes(64))
    config = parse_data_config(described(tmp_path / "data"), "data.toml")
    with pytest.raises(DataError, match="data holds no samples to pack; allowed: "):
        await open_described(config, tmp_path)
