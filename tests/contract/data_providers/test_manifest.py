"""Manifests: written, verified, and compared with every block that a source brings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, SourceUnavailable
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.manifest import (
    MANIFEST_NAME,
    MAX_BLOCK_BYTES,
    MIN_BLOCK_BYTES,
    parse_manifest,
    verify_folder,
)
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Urls
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import assert_serves_the_files
from tests.support.servers.data_http import FileServer, HttpReply, HttpRequest, Tree, http_server

SPEC = DatasetSpec(2, 64, bytes(32))
NAMES = ["a.bin", "b.bin"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        np.arange(64 * 300 + number, dtype="<u2").tofile(tmp_path / name)
    write_manifest(tmp_path, NAMES, MIN_BLOCK_BYTES)
    return tmp_path


async def opened(url: str, cache: BlockCache | None = None) -> DataProvider:
    location = Urls(tuple(f"{url}/{name}" for name in NAMES))
    return await open_location(location, SPEC, OpenOptions("run", lambda: "", OWNERS, cache))


@pytest.mark.parametrize("with_cache", [False, True])
async def test_data_with_a_manifest_are_the_files_bytes(folder: Path, tmp_path: Path, with_cache: bool) -> None:
    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES) if with_cache else None
    intervals = (DataIds(0, 0), DataIds(37, 411), DataIds(590, 700))
    async with http_server(FileServer(folder)) as url:
        await assert_serves_the_files(await opened(url, cache), folder, *intervals, spec=SPEC)


async def test_one_changed_byte_is_corrupt_and_names_the_block(folder: Path) -> None:
    data = bytearray((folder / "b.bin").read_bytes())
    data[3 * MIN_BLOCK_BYTES + 17] ^= 1
    (folder / "b.bin").write_bytes(data)
    with pytest.raises(CorruptData, match=r"b\.bin: block 3 of 4096 bytes"):
        verify_folder(folder)
    async with http_server(FileServer(folder)) as url:
        provider = await opened(url)
        with pytest.raises(CorruptData, match=r"b\.bin: block 3 of 4096 bytes differs from the manifest"):
            await provider.get_samples(DataIds(0, provider.sequence_count - 1 if provider.sequence_count else 0))
        await provider.aclose()


async def test_file_of_another_size_than_listed_is_corrupt_at_once(folder: Path) -> None:
    (folder / "a.bin").write_bytes((folder / "a.bin").read_bytes()[:-2])
    with pytest.raises(CorruptData, match="the manifest says 38400"):
        verify_folder(folder)
    async with http_server(FileServer(folder)) as url:
        with pytest.raises(CorruptData, match="the manifest says 38400"):
            await opened(url)


def write_folders(root: Path) -> None:
    """Folders `x` and `y` with a manifest and files of the same names, and `z` with other ones and no manifest."""
    for number, name in enumerate(("x", "y", "z")):
        (root / name).mkdir()
        for file in NAMES:
            np.arange(64 * (10 + number), dtype="<u2").tofile(root / name / file)
    write_manifest(root / "x", NAMES)
    write_manifest(root / "y", NAMES, MIN_BLOCK_BYTES)


@pytest.mark.parametrize("order", [("x/a.bin", "y/a.bin"), ("y/b.bin", "x/a.bin"), ("z/a.bin", "y/b.bin")])
@pytest.mark.parametrize("damaged", [0, 1])
async def test_every_folder_of_the_urls_is_checked_by_its_own_manifest(
    tmp_path: Path, order: tuple[str, str], damaged: int
) -> None:
    write_folders(tmp_path)
    async with http_server(Tree(tmp_path)) as url:
        location = Urls(tuple(f"{url}/{name}" for name in order))
        provider = await open_location(location, SPEC, OpenOptions("run", lambda: "", OWNERS))
        everything = DataIds(0, (provider.sequence_count or 1) - 1)
        whole = await provider.get_samples(everything)
        assert whole.sample_count == sum(10 + "xyz".index(name[0]) for name in order)
        path = tmp_path / order[damaged]
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
        again = await open_location(location, SPEC, OpenOptions("run", lambda: "", OWNERS))
        if order[damaged].startswith("z"):
            await again.get_samples(everything)
        else:
            with pytest.raises(CorruptData, match=f"{order[damaged]}: block 0 of .* differs from the manifest"):
                await again.get_samples(everything)
        await provider.aclose()
        await again.aclose()


async def test_manifest_above_the_folders_of_the_urls_lists_their_files(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    names = ["a.bin", "below/a.bin"]
    for name in names:
        np.arange(64 * 10, dtype="<u2").tofile(tmp_path / name)
    write_manifest(tmp_path, names)
    (tmp_path / names[1]).write_bytes(bytes(64 * 10 * 2))
    async with http_server(Tree(tmp_path)) as url:
        location = Urls(tuple(f"{url}/{name}" for name in names))
        provider = await open_location(location, DatasetSpec(2, 64), OpenOptions("run", lambda: "", OWNERS))
        assert (await provider.get_samples(DataIds(0, 9))).sample_count == 10
        with pytest.raises(CorruptData, match=r"below/a\.bin: block 0 of .* differs from the manifest"):
            await provider.get_samples(DataIds(10, 10))
        await provider.aclose()


async def test_manifest_that_does_not_come_now_is_no_reason_to_go_without(folder: Path) -> None:
    files = FileServer(folder)

    async def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(503) if request.path.endswith(MANIFEST_NAME) else await files(request)

    async with http_server(answer) as url:
        with pytest.raises(SourceUnavailable, match=MANIFEST_NAME):
            await opened(url)


async def test_server_that_answers_every_path_has_no_manifest(folder: Path) -> None:
    files = FileServer(folder)

    async def answer(request: HttpRequest) -> HttpReply:
        if request.path.endswith(MANIFEST_NAME):
            return HttpReply(200, b"<html>Not found, but friendly</html>")
        return await files(request)

    async with http_server(answer) as url:
        provider = await opened(url)
        assert (await provider.get_samples(DataIds(0, 9))).sample_count == 10
        await provider.aclose()


async def test_manifest_behind_a_url_that_is_damaged_is_corrupt(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text()[:-20])
    async with http_server(FileServer(folder)) as url:
        with pytest.raises(CorruptData, match="is not a manifest"):
            await opened(url)


def test_verified_folder_counts_its_files_and_misses_none(folder: Path) -> None:
    assert verify_folder(folder) == 2
    (folder / "a.bin").unlink()
    with pytest.raises(CorruptData, match=r"a\.bin, which does not exist"):
        verify_folder(folder)


def test_missing_manifest_and_blocks_of_a_wrong_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=MANIFEST_NAME):
        verify_folder(tmp_path)
    for block_bytes in (0, MIN_BLOCK_BYTES - 1, MAX_BLOCK_BYTES + 1):
        with pytest.raises(InvalidInput, match="allowed"):
            write_manifest(tmp_path, [], block_bytes)


EMPTY = {"size_bytes": 0, "sha256": "0" * 64, "hashes": ""}
MANIFEST = {"format": "epochal/manifest/v1", "block_bytes": 4096, "files": {"a": EMPTY}}
SPOILED: dict[str, Callable[[dict[str, Any]], object]] = {
    "format": lambda found: found.update(format="v0"),
    "block": lambda found: found.update(block_bytes=1),
    "no files": lambda found: found.pop("files"),
    "a list of files": lambda found: found.update(files=["a"]),
    "too few hashes": lambda found: found["files"].update(a={"size_bytes": 1, "hashes": ""}),
    "negative": lambda found: found["files"].update(a={"size_bytes": -1, "hashes": ""}),
    "no base64": lambda found: found["files"].update(a={"size_bytes": 1, "hashes": "?"}),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_manifest_that_is_none_is_corrupt(spoil: Callable[[dict[str, Any]], object]) -> None:
    found = json.loads(json.dumps(MANIFEST))
    parse_manifest(json.dumps(found).encode(), "m")
    spoil(found)
    with pytest.raises(CorruptData, match="m"):
        parse_manifest(json.dumps(found).encode(), "m")


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["format", "files", "block_bytes", "a"]), inner, max_size=4)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_manifest_of_anything_is_corrupt(text: bytes) -> None:
    with pytest.raises(CorruptData):
        parse_manifest(text, "m")
