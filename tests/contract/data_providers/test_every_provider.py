"""The contract of every data provider: the same bytes for the same files, and the same manners."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.order import MAX_PASSES
from epochal.data_providers.protocol import (
    MAX_REQUEST_SAMPLES,
    DataProvider,
    DatasetSpec,
    OutOfRange,
    Rejected,
    TokenBatch,
)
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.cached_source import CachedSource
from epochal.data_providers.sources.http.source import HttpSource
from epochal.data_providers.sources.manifest import MIN_BLOCK_BYTES
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Urls
from epochal.state.errors import InternalError
from epochal.state.intervals import MAX_INDEX, DataIds
from tests.support.data.data_files import (
    FILE_TOKENS,
    SEED,
    SEQUENCE_COUNT,
    SPEC,
    expected_tokens,
    open_rows,
    write_dataset,
)
from tests.support.data.data_oracle import slow_order
from tests.support.heavy import need_module
from tests.support.servers.data_http import FileServer, http_server
from tests.support.servers.data_server import open_client, serving

EXAMPLE = Path(__file__).parents[3] / "examples" / "provider_package" / "epochal_text_provider.py"
Opener = Callable[[Path, DatasetSpec], AbstractAsyncContextManager[DataProvider]]


def closing(
    make: Callable[[AsyncExitStack, Path, DatasetSpec], Awaitable[DataProvider]],
) -> Callable[[Path, DatasetSpec], AbstractAsyncContextManager[DataProvider]]:
    """Close the provider that `make` opens, and then what it entered in the stack."""

    @asynccontextmanager
    async def opened(folder: Path, spec: DatasetSpec) -> AsyncIterator[DataProvider]:
        async with AsyncExitStack() as stack:
            provider = await make(stack, folder, spec)
            yield provider
            await provider.aclose()

    return opened


@closing
async def open_local(_: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    return LocalDataProvider.open(folder, spec)


@closing
async def open_http(stack: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    url = await stack.enter_async_context(http_server(FileServer(folder)))
    return await RangedDataProvider.open(
        await HttpSource.open([f"{url}/some/{name}?x=1" for name in FILE_TOKENS]), spec
    )


@closing
async def open_tcp(stack: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    source = await stack.enter_async_context(open_local(folder, spec))
    _, address = await stack.enter_async_context(serving(source, spec=spec))
    return await open_client(address)


@closing
async def open_dummy(_: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    return DummyDataProvider(spec)


@closing
async def open_cached(stack: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    url = await stack.enter_async_context(http_server(FileServer(folder)))
    source = await HttpSource.open([f"{url}/{name}" for name in FILE_TOKENS])
    cache = BlockCache(folder.parent / f"{folder.name}-cache", MIN_CACHE_BYTES)
    return await RangedDataProvider.open(CachedSource(source, cache), spec)


@closing
async def open_verified(stack: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    write_manifest(folder, list(FILE_TOKENS), MIN_BLOCK_BYTES)
    url = await stack.enter_async_context(http_server(FileServer(folder)))
    urls = Urls(tuple(f"{url}/{name}" for name in FILE_TOKENS))
    return await open_location(urls, spec, OpenOptions("run", lambda: "", OWNERS))


@closing
async def open_bucket(_: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    need_module("obstore")
    from obstore.store import LocalStore

    source = await ObjectStoreSource.over(LocalStore(folder.parent), "file://", folder.name)
    return await RangedDataProvider.open(source, spec)


@closing
async def open_mix(_: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    files, made_up = LocalDataProvider.open(folder, spec), DummyDataProvider(spec)
    return WeightedDataProvider([Weighted("files", files, 2), Weighted("made up", made_up, 1)])


@closing
async def open_preprocessed(_: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    rows = np.arange(101 * spec.sequence_length).reshape(101, spec.sequence_length).tolist()
    pyarrow.parquet.write_table(pyarrow.table({"inputs": rows}), folder / "rows.parquet", row_group_size=7)
    return await open_rows(folder / "rows.parquet")


@closing
async def open_example(_: AsyncExitStack, folder: Path, spec: DatasetSpec) -> DataProvider:
    """Open by the example package, which `tests/integration/data/test_provider_package.py` installs."""
    found = spec_from_file_location("epochal_text_provider", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    package = module_from_spec(found)
    found.loader.exec_module(package)
    (folder / "play.txt").write_bytes(bytes(range(101)) * spec.sequence_length)
    provider: DataProvider = await package.open_text(str(folder / "play.txt"), spec)
    return provider


OVER_FILES = {
    "local": open_local,
    "http": open_http,
    "http, cached": open_cached,
    "http, verified": open_verified,
    "bucket": open_bucket,
    "tcp": open_tcp,
}
EVERY = {**OVER_FILES, "dummy": open_dummy, "mix": open_mix, "preprocessed": open_preprocessed, "example": open_example}
over_files = pytest.mark.parametrize("open_provider", OVER_FILES.values(), ids=OVER_FILES)
every_provider = pytest.mark.parametrize("open_provider", EVERY.values(), ids=EVERY)
SEQUENCES = [count // SPEC.sequence_length for _, count in sorted(FILE_TOKENS.items())]


@over_files
@pytest.mark.parametrize("token_size", [2, 4])
@pytest.mark.parametrize("seed", [None, SEED], ids=["in order", "shuffled"])
async def test_provider_over_files_delivers_the_files_bytes_pass_after_pass(
    open_provider: Opener, token_size: int, seed: bytes | None, tmp_path: Path
) -> None:
    spec = DatasetSpec(token_size, SPEC.sequence_length, seed)
    order = [sample for number in range(3) for sample in slow_order(SEQUENCES, seed, number)]
    async with open_provider(write_dataset(tmp_path, spec), spec) as provider:
        assert provider.sequence_count == SEQUENCE_COUNT
        for start, end in [(0, 0), (0, 302), (40, 180), (101, 201), (100, 101), (302, 302)]:
            batch = await provider.get_samples(DataIds(start, end))
            assert batch.input_ids.dtype == spec.dtype
            assert batch.input_ids.tolist() == expected_tokens(spec, order[start : end + 1])
            assert batch.rows().shape == (end - start + 1, 16)


@over_files
async def test_provider_over_files_has_the_fingerprint_of_the_files(open_provider: Opener, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    async with open_provider(folder, SPEC) as provider, open_local(folder, SPEC) as local:
        assert provider.fingerprint == local.fingerprint
    async with open_provider(folder, replace(SPEC, shuffle_seed=None)) as provider:
        assert provider.fingerprint != local.fingerprint


@over_files
async def test_provider_over_files_beyond_the_last_pass_is_out_of_range(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        end = MAX_PASSES * SEQUENCE_COUNT
        assert (await provider.get_samples(DataIds(end - 1, end - 1))).sample_count == 1
        with pytest.raises(OutOfRange):
            await provider.get_samples(DataIds(end - 1, end))
        assert (await provider.get_samples(DataIds(0, 1))).sample_count == 2


@every_provider
async def test_provider_answers_the_same_however_a_request_is_cut(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        assert len(bytes.fromhex(provider.fingerprint)) == 32
        whole = (await provider.get_samples(DataIds(5, 250))).rows()
        for cut in (1, 7, 100):
            parts = [
                (await provider.get_samples(DataIds(start, min(start + cut - 1, 250)))).rows()
                for start in range(5, 251, cut)
            ]
            assert np.array_equal(np.concatenate(parts), whole)


@every_provider
async def test_provider_serves_concurrent_requests(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        alone = [await provider.get_samples(DataIds(start, start + 30)) for start in range(40)]
        answers: dict[int, TokenBatch] = {}

        async def ask(start: int) -> None:
            answers[start] = await provider.get_samples(DataIds(start, start + 30))

        async with asyncio.TaskGroup() as group:
            for start in range(40):
                group.create_task(ask(start))
        assert all(np.array_equal(answers[start].input_ids, batch.input_ids) for start, batch in enumerate(alone))


@every_provider
async def test_provider_gives_arrays_that_are_the_callers_own(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        first = await provider.get_samples(DataIds(0, 20))
        kept = first.input_ids.copy()
        first.input_ids[:] = 0
        assert np.array_equal((await provider.get_samples(DataIds(0, 20))).input_ids, kept)


@every_provider
async def test_provider_refuses_a_request_above_the_bound(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        for end in (MAX_REQUEST_SAMPLES, MAX_INDEX):
            with pytest.raises(Rejected, match="at most"):
                await provider.get_samples(DataIds(0, end))


@every_provider
async def test_provider_that_is_cancelled_serves_the_next_request(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        expected = (await provider.get_samples(DataIds(0, 99))).input_ids
        for turns in range(12):
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(provider.get_samples(DataIds(100, 199)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asking.cancel()
            assert np.array_equal((await provider.get_samples(DataIds(0, 99))).input_ids, expected)


@every_provider
async def test_provider_closed_twice_is_closed(open_provider: Opener, tmp_path: Path) -> None:
    async with open_provider(write_dataset(tmp_path), SPEC) as provider:
        await provider.get_samples(DataIds(0, 3))
        await provider.aclose()
        await provider.aclose()
        with pytest.raises(InternalError):
            await provider.get_samples(DataIds(0, 3))


async def test_dummy_provider_golden_vector_never_changes() -> None:
    provider = DummyDataProvider(DatasetSpec(2, 6))
    batch = await provider.get_samples(DataIds(41, 42))
    assert provider.sequence_count is None
    assert batch.rows().tolist() == [[147, 151, 80, 169, 21, 16], [221, 1, 231, 131, 161, 192]]
