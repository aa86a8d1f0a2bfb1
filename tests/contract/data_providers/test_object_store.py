"""Files in a bucket: obstore against a real S3 API (moto's server), and against stores in memory."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, Rejected
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources import object_store
from epochal.data_providers.sources.manifest import MIN_BLOCK_BYTES
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime import buckets
from epochal.runtime.buckets import location_of
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import S3, Azure, Gcp
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import SPEC, assert_serves_the_files, write_dataset
from tests.support.heavy import need_module
from tests.support.servers.s3_server import AWS, BUCKET


async def upload(store: Any, folder: Path, prefix: str) -> None:
    import obstore

    for name in os.listdir(folder):
        await obstore.put_async(store, f"{prefix}/{name}", (folder / name).read_bytes())


async def opened(url: str, folder: str, spec: DatasetSpec = SPEC) -> DataProvider:
    location = S3(bucket_name=BUCKET, filter_directory=folder, endpoint=url)
    return await open_location(location, spec, OpenOptions("run", lambda: "", OWNERS))


async def test_bucket_gives_the_bytes_and_the_fingerprint_of_the_files(
    bucket: Any, s3_url: str, tmp_path: Path
) -> None:
    folder = write_dataset(tmp_path / "data")
    await upload(bucket, folder, "run/data")
    await upload(bucket, folder, "run/database")
    await assert_serves_the_files(await opened(s3_url, "run/data/"), folder, DataIds(0, 0), DataIds(40, 240))


async def test_bucket_with_a_manifest_holds_no_token_file_that_it_does_not_list(
    bucket: Any, s3_url: str, tmp_path: Path
) -> None:
    folder = write_dataset(tmp_path / "data")
    write_manifest(folder, sorted(path.name for path in folder.iterdir() if path.name != "a.bin"), MIN_BLOCK_BYTES)
    await upload(bucket, folder, "data")
    with pytest.raises(CorruptData, match=r"the manifest does not list a\.bin"):
        await opened(s3_url, "data")


async def test_object_that_changes_is_corrupt_and_one_that_vanishes_rejected(
    bucket: Any, s3_url: str, tmp_path: Path
) -> None:
    import obstore

    await upload(bucket, write_dataset(tmp_path / "data"), "data")
    provider = await opened(s3_url, "data")
    for name in ("a.bin", "b.ds", "c.npy"):
        await obstore.put_async(bucket, f"data/{name}", b"x" * (tmp_path / "data" / name).stat().st_size)
    with pytest.raises(CorruptData, match="changed"):
        await provider.get_samples(DataIds(0, 5))
    for name in ("a.bin", "b.ds", "c.npy"):
        await obstore.delete_async(bucket, f"data/{name}")
    with pytest.raises(Rejected, match="does not exist"):
        await provider.get_samples(DataIds(0, 5))


async def test_bucket_or_folder_that_is_not_there_is_said(bucket: Any, s3_url: str) -> None:
    with pytest.raises(CorruptData, match="s3://tokens/nothing holds no token files"):
        await opened(s3_url, "nothing")
    gone = S3(bucket_name="gone", endpoint=s3_url)
    with pytest.raises(Rejected, match="s3://gone does not exist"):
        await open_location(gone, SPEC, OpenOptions("run", lambda: "", OWNERS))


async def test_environment_names_the_server_of_a_location_without_endpoint(
    bucket: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_dataset(tmp_path / "data")
    await upload(bucket, folder, "data")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    await assert_serves_the_files(await located("s3://tokens/data"), folder)


async def allow_everyone(s3_url: str) -> None:
    """Make the bucket public: unsigned requests may read, as on Amazon."""
    import httpx

    rule = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"}
    async with httpx.AsyncClient() as client:
        policy = {"Version": "2012-10-17", "Statement": [rule]}
        assert (await client.put(f"{s3_url}/{BUCKET}?policy", json=policy)).status_code < 300


async def test_bucket_without_credentials_is_read_only_where_it_is_public(
    bucket: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(bucket, write_dataset(tmp_path / "data"), "data")
    for name in (*AWS, *buckets.CREDENTIALS["S3"]):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Rejected, match=r"s3://tokens/data/.* is refused to this machine"):
        await opened(s3_url, "data")
    await allow_everyone(s3_url)
    await assert_serves_the_files(await opened(s3_url, "data"), tmp_path / "data")


async def test_gcp_bucket_is_read_through_the_same_listing_and_ranges(
    bucket: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Google's XML API lists and reads as S3 does; obstore takes its base URL from the account's key.
    folder = write_dataset(tmp_path / "data")
    await upload(bucket, folder, "data")
    await upload(bucket, folder, "database")
    await allow_everyone(s3_url)
    account = {"gcs_base_url": s3_url, "disable_oauth": True}
    key = account | dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    await assert_serves_the_files(await located("gs://tokens/data"), folder, DataIds(0, 99))


async def located(text: str) -> DataProvider:
    location = parse_location(text)
    assert isinstance(location, S3 | Gcp | Azure)
    return await open_location(location, SPEC, OpenOptions("run", lambda: "", OWNERS))


async def test_folder_in_memory_is_a_folder_and_no_prefix_of_names(tmp_path: Path) -> None:
    need_module("obstore")
    import obstore
    import obstore.store

    store = obstore.store.MemoryStore()
    for name in ("data/a.bin", "data/deeper/b.bin", "database/c.bin", "d.bin"):
        await obstore.put_async(store, name, np.arange(32, dtype="<u2").tobytes())
    source = await ObjectStoreSource.over(store, "memory://x", "/data/")
    assert sorted(file.name for file in source.files) == ["a.bin", "deeper/b.bin"]
    provider = await RangedDataProvider.open(source, DatasetSpec(2, 16))
    answers = [provider.get_samples(DataIds(number, number)) for number in range(4)]
    async with asyncio.TaskGroup() as tasks:
        batches = [tasks.create_task(answer) for answer in answers]
    assert [int(task.result().input_ids[0]) for task in batches] == [0, 16, 0, 16]
    everything = await ObjectStoreSource.over(store, "memory://x", "")
    assert len(everything.files) == 4


async def test_more_objects_than_are_listed_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("obstore")
    import obstore
    import obstore.store

    monkeypatch.setattr(object_store, "MAX_LISTED_FILES", 2)
    store = obstore.store.MemoryStore()
    for number in range(3):
        await obstore.put_async(store, f"{number}.bin", b"xx")
    with pytest.raises(Rejected, match="more than 2 objects"):
        await ObjectStoreSource.over(store, "memory://x", "")


@pytest.mark.parametrize(
    ("bucket", "text"),
    [
        (Gcp(bucket_name="b", filter_directory=""), "gs://b"),
        (S3(bucket_name="b", filter_directory="x/y/"), "s3://b/x/y"),
        (Azure(account_name="a", container_name="c", filter_directory="d"), "az://a/c/d"),
    ],
)
def test_every_kind_of_bucket_opens_unsigned_without_credentials(
    bucket: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("obstore")
    for names in buckets.CREDENTIALS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name in buckets.SKIP_SIGNATURE.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert location_of(bucket) == text
    assert buckets.store_of(bucket, buckets.StoreAccess()) is not None
    assert buckets.is_anonymous(bucket.variant)


def test_credentials_in_the_environment_sign_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    assert not buckets.is_anonymous("S3")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "false")
    assert not buckets.is_anonymous("S3")


async def test_bucket_without_obstore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InvalidInput, match="object-stores"):
        await opened("http://127.0.0.1:1", "data")


def test_bucket_locations_are_read_from_text() -> None:
    assert parse_location("s3://b/x/y") == S3(bucket_name="b", filter_directory="x/y")
    azure = Azure(account_name="a", container_name="c", filter_directory="x/y")
    assert parse_location("az://a/c/x/y") == azure
    assert parse_location(location_of(azure)) == azure
    assert parse_location("gs://b") == Gcp(bucket_name="b", filter_directory="")
    for text in ("s3://", "gs:///x", "az://a", "az:///c"):
        with pytest.raises(InvalidInput, match=text):
            parse_location(text)
