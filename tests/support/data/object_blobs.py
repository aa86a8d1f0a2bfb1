"""Blobs in a bucket of the S3 server on this machine."""

from typing import Any

from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import Objects
from epochal.state.config.blob_place import S3Blobs
from tests.support.servers.s3_server import BUCKET

FOLDER = "training"
RUN_ID = "run-1"
PREFIX = f"{FOLDER}/{RUN_ID}"


def s3_place(url: str, folder: str = FOLDER) -> S3Blobs:
    """The place of blobs, as a state file says it."""
    return S3Blobs(bucket_name=BUCKET, folder=folder, endpoint=url)


def s3_lines(url: str, **values: Any) -> dict[str, Any]:
    """The same as plain values of a state file."""
    return {"S3": {"bucket_name": BUCKET, "folder": FOLDER, "endpoint": url, **values}}


async def object_blobs(url: str, max_total_bytes: int, kind: type[ObjectBlobs] = ObjectBlobs) -> ObjectBlobs:
    """The blobs of a bucket, whose credentials the environment holds."""
    return await kind.open(Objects(s3_place(url), RUN_ID), max_total_bytes)
