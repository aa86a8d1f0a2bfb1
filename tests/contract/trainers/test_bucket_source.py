"""A model in a bucket: obstore against a real S3 API."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.state.config.data_location import S3, Gcp
from epochal.state.config.model_table import Gcs, S3Checkpoint
from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.trainers.sources import safetensors_reader
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.open_model import BucketFolder, names_a_source, open_source
from tests.support.heavy import need_module
from tests.support.models.model_files import CONFIG, write_model
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server
from tests.support.servers.s3_server import BUCKET

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([0.5, -1.25], np.float32)
SHAPES = {"a": (2, 3), "b": (2,)}


def upload(store: Any, folder: Path, prefix: str) -> None:
    import obstore

    for path in folder.iterdir():
        obstore.put(store, f"{prefix}/{path.name}", path.read_bytes())


def source(url: str, folder: str) -> FolderSource:
    return FolderSource(BucketFolder(S3(bucket_name=BUCKET, filter_directory=folder, endpoint=url)))


def test_folder_of_a_bucket_gives_config_and_tensors_by_ranges(
    bucket: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_reader, "CHUNK_BYTES", 8)
    upload(bucket, write_model(tmp_path / "m", {"a": A}, {"b": B}, code="BF16"), "models/m")
    upload(bucket, write_model(tmp_path / "other", {"c": B}), "models/mm")
    found = source(s3_url, "models/m/")
    assert found.config() == CONFIG
    assert {name: values.tolist() for name, values in found.tensors(SHAPES)} == {"a": A.tolist(), "b": B.tolist()}
    assert list(found.tokenizer_files()) == []


def test_file_that_changes_while_it_is_read_is_refused(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    import obstore

    upload(bucket, write_model(tmp_path, {"a": A, "b": B}), "m")
    tensors = source(s3_url, "m").tensors(SHAPES)
    next(tensors)
    path = tmp_path / "model.safetensors"
    obstore.put(bucket, "m/model.safetensors", path.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidInput, match=r"s3://tokens/m/model\.safetensors changed while it was read"):
        next(tensors)


def test_folder_or_bucket_that_is_not_there_is_named(bucket: Any, s3_url: str) -> None:
    with pytest.raises(InvalidInput, match=r"s3://tokens/nothing holds no config\.json"):
        source(s3_url, "nothing").config()
    with pytest.raises(InvalidInput, match=r"s3://gone/x does not exist"):
        FolderSource(BucketFolder(S3(bucket_name="gone", filter_directory="x", endpoint=s3_url))).config()


async def test_bucket_that_fails_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("obstore")
    import asyncio

    async def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(503)

    async with http_server(answer) as url:
        found = source(url, "m")
        with pytest.raises(ModelUnavailable, match=r"s3://tokens/m cannot be read"):
            await asyncio.to_thread(found.config)


def test_state_file_names_buckets(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    checkpoint = Gcs(bucket="b", prefix="models/m")
    assert names_a_source(checkpoint)
    assert open_source(checkpoint).place == "gs://b/models/m"
    assert BucketFolder(Gcp(bucket_name="b", filter_directory="")).place == "gs://b"
    upload(bucket, write_model(tmp_path, {"a": A, "b": B}), "m")
    assert open_source(S3Checkpoint(bucket=BUCKET, prefix="m", endpoint=s3_url)).config() == CONFIG
