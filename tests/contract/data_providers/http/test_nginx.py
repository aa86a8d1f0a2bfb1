"""Data over HTTP from a real nginx: every location of a state file, and what real servers refuse."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.http.range_answers import MAX_WHOLE_FILE_BYTES
from epochal.data_providers.sources.http.source import HttpOptions, HttpSource
from epochal.runtime.permissions import OWNERS
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import DataError
from epochal.state.intervals import DataIds
from tests.support.data.data_files import assert_serves_the_files
from tests.support.data.states import state_file
from tests.support.servers.nginx import Nginx, nginx

SEED = list(range(32))
SPEC = DatasetSpec(2, 16, bytes(SEED))
FILES = 5
SEQUENCES_PER_FILE = 3000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "root"
    folder.mkdir()
    for number in range(FILES):
        tokens = np.arange(16 * SEQUENCES_PER_FILE + number, dtype=np.uint32) + number * 7919
        tokens.astype("<u2").tofile(folder / f"part-{number:04}.bin")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Nginx]:
    with nginx(tmp_path_factory.mktemp("nginx") / "nginx", root) as running:
        yield running


async def opened(location: Any, cache: BlockCache | None = None) -> DataProvider:
    http = {"location": location, "token_size_in_bytes": "TwoBytes", "shuffle": {"Seeded": SEED}}
    return await open_provider(state_file(model__LLM__data_location={"Http": http}), lambda: "", OWNERS, None, cache)


def numbered(url: str) -> Any:
    template = f"{url}/data/part-{{}}.bin"
    return {"NumberedFiles": {"url_template": template, "start_index": 0, "n_left_pad_zeros": 4, "num_files": FILES}}


def listed(url: str) -> Any:
    return {"Urls": [f"{url}/moved/part-{number:04}.bin" for number in reversed(range(FILES))]}


@pytest.mark.parametrize("location", [numbered, listed])
@pytest.mark.parametrize("with_cache", [False, True])
async def test_files_behind_nginx_are_the_files_on_the_disk(
    server: Nginx, root: Path, tmp_path: Path, location: Any, with_cache: bool
) -> None:
    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES) if with_cache else None
    last = FILES * SEQUENCES_PER_FILE - 1
    intervals = (DataIds(0, 0), DataIds(1000, 1255), DataIds(last - 10, last + 100))
    await assert_serves_the_files(await opened(location(server.url), cache), root, *intervals, spec=SPEC)


ONE_TRY = HttpOptions(retry=RetryPolicy(attempts=1))


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("data/absent.bin", Rejected, "answered 404"),
        ("denied/part-0000.bin", Rejected, "answered 403"),
        ("broken/part-0000.bin", SourceUnavailable, "answered 500"),
        ("around/part-0000.bin", Rejected, "cannot be requested"),
        ("data/notes.txt", CorruptData, "holds no token files"),
        ("data/short.bin", CorruptData, "hold no sequence of 16 tokens"),
        ("data/odd.bin", CorruptData, "not a multiple of the token size"),
        ("data/empty.bin", CorruptData, "hold no sequence"),
    ],
)
async def test_what_a_server_refuses_or_holds_wrongly_has_its_own_error(
    server: Nginx, root: Path, path: str, error: type[DataError], message: str
) -> None:
    bad = {"notes.txt": b"x", "short.bin": b"xx", "odd.bin": b"x" * 33, "empty.bin": b""}
    for name, data in bad.items():
        (root / name).write_bytes(data)
    with pytest.raises(error, match=message):
        await RangedDataProvider.open(await HttpSource.open([f"{server.url}/{path}"], ONE_TRY), SPEC)
    for name in bad:
        (root / name).unlink()


async def test_server_without_ranges_is_allowed_for_a_small_file_alone(server: Nginx, root: Path) -> None:
    provider = await RangedDataProvider.open(await HttpSource.open([f"{server.url}/whole/part-0000.bin"]), SPEC)
    assert (await provider.get_samples(DataIds(0, 20))).sample_count == 21
    await provider.aclose()
    (root / "large.bin").write_bytes(bytes(MAX_WHOLE_FILE_BYTES + 2))
    with pytest.raises(Rejected, match="answers a range request with the whole file"):
        await HttpSource.open([f"{server.url}/whole/large.bin"], ONE_TRY)
    (root / "large.bin").unlink()


async def test_server_that_is_started_again_goes_on_serving(tmp_path: Path, root: Path) -> None:
    with nginx(tmp_path / "first", root) as first:
        port = int(first.url.rpartition(":")[2])
        provider = await opened(numbered(first.url))
        before = await provider.get_samples(DataIds(0, 50))
    with nginx(tmp_path / "second", root, port):
        again = await provider.get_samples(DataIds(0, 50))
    assert np.array_equal(before.input_ids, again.input_ids)
    await provider.aclose()
