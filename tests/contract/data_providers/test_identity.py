"""The fingerprint of the same files: by content where a manifest names it, and the same wherever they lie."""

import json
from pathlib import Path

import numpy as np
import pytest

import epochal.data_providers.providers.local_manifest
from epochal.data_providers.identity import BY_CONTENT, BY_NAME
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.manifest import MANIFEST_NAME, MIN_BLOCK_BYTES, VerifiedSource, verify_folder
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Urls
from epochal.state.dataset_descriptions import dataset_difference
from epochal.state.intervals import DataIds
from epochal.tools.run_inputs import data_names
from tests.support.heavy import need_module
from tests.support.servers.data_http import Tree, http_server

SPEC = DatasetSpec(2, 16, bytes(32))
NESTED = {"de/a.bin": 100, "en/a.bin": 200, "en/more/b.bin": 50}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for number, (name, count) in enumerate(NESTED.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (np.arange(16 * count) + 7 * number).astype("<u2").tofile(root / name)
    return root


async def fingerprints(folder: Path) -> dict[str, tuple[str, str | None]]:
    """Open the files on the disk, over HTTP and in a bucket."""
    need_module("obstore")
    from obstore.store import LocalStore

    found: dict[str, tuple[str, str | None]] = {}
    local = LocalDataProvider.open(folder, SPEC)
    source = await ObjectStoreSource.over(LocalStore(folder.parent), "file://", folder.name)
    bucket = await RangedDataProvider.open(await VerifiedSource.where_listed(source), SPEC)
    async with http_server(Tree(folder)) as url:
        urls = Urls(tuple(f"{url}/{name}" for name in NESTED))
        remote = await open_location(urls, SPEC, OpenOptions("run", None, OWNERS))
        everything = DataIds(0, sum(NESTED.values()) - 1)
        samples = (await local.get_samples(everything)).input_ids
        for name, provider in (("local", local), ("bucket", bucket), ("http", remote)):
            assert np.array_equal((await provider.get_samples(everything)).input_ids, samples), name
            assert isinstance(provider, LocalDataProvider | RangedDataProvider)
            found[name] = provider.fingerprint, provider.description.identified_by
            await provider.aclose()
    return found


@pytest.mark.parametrize("manifests", ["none", "at the root", "in each folder"])
async def test_nested_folder_is_the_same_dataset_wherever_it_lies(folder: Path, manifests: str) -> None:
    if manifests == "at the root":
        write_manifest(folder, data_names(folder), MIN_BLOCK_BYTES)
    elif manifests == "in each folder":
        for name in NESTED:
            path = folder / name
            write_manifest(path.parent, [path.name], MIN_BLOCK_BYTES)
    found = await fingerprints(folder)
    assert len(set(found.values())) == 1, found
    assert found["local"][1] == (BY_NAME if manifests == "none" else BY_CONTENT)


def opened(folder: Path) -> LocalDataProvider:
    return LocalDataProvider.open(folder, SPEC)


def test_other_bytes_of_the_same_size_have_another_fingerprint(folder: Path) -> None:
    by_name = opened(folder).fingerprint
    write_manifest(folder, data_names(folder))
    before = opened(folder)
    data = bytearray((folder / "en/a.bin").read_bytes())
    data[100] ^= 1
    (folder / "en/a.bin").write_bytes(data)
    with pytest.raises(CorruptData, match=r"en/a\.bin: block 0 of .* differs from the manifest"):
        opened(folder)
    write_manifest(folder, data_names(folder))
    after = opened(folder)
    assert len({by_name, before.fingerprint, after.fingerprint}) == 3
    said = dataset_difference(after.description, before.description)
    contents = [file.content for one in (before, after) for file in one.description.files if file.name == "en/a.bin"]
    assert all(f"'en/a.bin' of {len(data)} bytes (content {content}…)" in said for content in contents)


def test_manifest_whose_whole_hash_is_wrong_or_none_is_refused(folder: Path) -> None:
    write_manifest(folder, data_names(folder))
    document = json.loads((folder / MANIFEST_NAME).read_text())
    document["files"]["en/a.bin"]["sha256"] = "0" * 64
    (folder / MANIFEST_NAME).write_text(json.dumps(document))
    with pytest.raises(CorruptData, match=r"en/a\.bin: the manifest contradicts itself"):
        verify_folder(folder)
    document["files"]["en/a.bin"]["sha256"] = "XYZ"
    (folder / MANIFEST_NAME).write_text(json.dumps(document))
    with pytest.raises(CorruptData, match=r"en/a\.bin has the sha256 'XYZ'; allowed: 64 hex digits"):
        opened(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "en/c.bin").write_bytes(bytes(64)), r"does not list en/c\.bin, which would be read"),
        (lambda root: (root / "en/a.bin").unlink(), r"the manifest lists en/a\.bin, which does not exist"),
        (lambda root: (root / "en/a.bin").write_bytes(bytes(64)), r"has 64 bytes; the manifest says 6400"),
        (lambda root: (root / MANIFEST_NAME).write_text("{"), "is not a manifest"),
    ],
)
def test_folder_that_contradicts_its_manifest_is_corrupt(folder: Path, change: object, message: str) -> None:
    write_manifest(folder, data_names(folder))
    change(folder)  # type: ignore[operator]
    with pytest.raises(CorruptData, match=message):
        opened(folder)


def test_single_file_has_the_content_that_the_manifest_beside_it_names(folder: Path) -> None:
    before = opened(folder / "en/a.bin")
    write_manifest(folder / "en", ["a.bin"])
    after = opened(folder / "en/a.bin")
    assert (before.description.identified_by, after.description.identified_by) == (BY_NAME, BY_CONTENT)
    (folder / "en/a.bin").write_bytes(bytes(6400))
    with pytest.raises(CorruptData, match="differs from the manifest"):
        opened(folder / "en/a.bin")


def test_of_large_data_evenly_spread_blocks_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.arange(4096 * 10, dtype="<u2").tofile(folder / "en/large.bin")
    write_manifest(folder, data_names(folder), MIN_BLOCK_BYTES)
    monkeypatch.setattr(epochal.data_providers.providers.local_manifest, "CHECKED_BYTES", 10 * MIN_BLOCK_BYTES)
    data = bytearray((folder / "en/large.bin").read_bytes())
    whole = bytes(len(data))
    data[MIN_BLOCK_BYTES + 1] ^= 1
    (folder / "en/large.bin").write_bytes(data)
    opened(folder)  # one block of twenty, which was not looked at
    with pytest.raises(CorruptData):
        verify_folder(folder)
    (folder / "en/large.bin").write_bytes(whole)
    with pytest.raises(CorruptData, match=r"large\.bin"):
        opened(folder)


def test_folder_of_hidden_files_alone_holds_no_token_files(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/a.bin").write_bytes(bytes(64))
    with pytest.raises(CorruptData, match="holds no token files"):
        opened(tmp_path)
    with pytest.raises(Rejected):
        opened(tmp_path / "nowhere")
