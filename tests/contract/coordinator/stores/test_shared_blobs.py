"""Blobs that several coordinators of one run receive, serve and delete: each sees what the others did."""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from epochal.coordinator.store.blobs import BlobStore
from epochal.coordinator.store.files.blobs import FORGOTTEN_AFTER_S, DirectoryBlobs
from epochal.coordinator.store.object_store.blobs import ObjectBlobs, SharedObjectBlobs
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, sha256_hex
from tests.support.data.object_blobs import object_blobs
from tests.support.data.stored_blobs import blob_bytes, one_piece

LIMIT = 10_000_000
DATA, OTHER = b"one blob" * 1000, b"another" * 10
ONE, TWO = ClientId("01" * 16), ClientId("02" * 16)
Opening: TypeAlias = Callable[[], Awaitable[BlobStore]]


@pytest.fixture(params=("directory", "objects"))
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    if request.param == "directory":
        return lambda: DirectoryBlobs.shared(tmp_path, "run", b"owner", LIMIT)
    request.getfixturevalue("bucket")
    url = request.getfixturevalue("s3_url")
    return lambda: object_blobs(url, LIMIT, SharedObjectBlobs)


async def put(blobs: BlobStore, data: bytes) -> Sha256:
    digest = sha256_hex(data)
    await blobs.receive(digest, len(data), one_piece(data))
    return digest


async def test_blob_that_one_coordinator_takes_is_held_by_all(opening: Opening) -> None:
    one, other = await opening(), await opening()
    digest = await put(one, DATA)
    await put(one, OTHER)
    assert await other.size(digest) == len(DATA)
    assert await blob_bytes(other, digest) == DATA
    assert await other.held() == {digest, sha256_hex(OTHER)}
    await other.recount()
    assert other.total_bytes == len(DATA) + len(OTHER)


async def test_blob_that_one_coordinator_deletes_is_taken_again_by_another(opening: Opening) -> None:
    one, other = await opening(), await opening()
    digest = await put(one, DATA)
    assert await other.size(digest) == len(DATA)
    await one.delete(digest)
    assert await other.size(digest) is None
    await put(other, DATA)
    assert await blob_bytes(one, digest) == DATA
    await one.delete(digest)
    for blobs in (one, other):
        assert await blobs.held() == frozenset()
        await blobs.recount()
        assert blobs.total_bytes == 0


async def test_start_of_a_coordinator_leaves_what_another_one_receives(tmp_path: Path) -> None:
    one = await DirectoryBlobs.shared(tmp_path, "run", b"owner", LIMIT)
    parts = tmp_path / "run" / "blobs" / "partial"

    async def body() -> Any:
        yield DATA[:2000]
        old = parts / "left-by-a-killed-process"
        old.write_bytes(b"x")
        os.utime(old, (time.time() - FORGOTTEN_AFTER_S - 60,) * 2)
        await DirectoryBlobs.shared(tmp_path, "run", b"owner", LIMIT)
        assert not old.exists()
        yield DATA[2000:]

    await one.receive(sha256_hex(DATA), len(DATA), body())
    assert await blob_bytes(one, sha256_hex(DATA)) == DATA


async def test_folder_of_blobs_of_another_store_is_refused(tmp_path: Path) -> None:
    await DirectoryBlobs.shared(tmp_path, "run", b"owner", LIMIT)
    with pytest.raises(StoreFailed, match="blobs of a run in another store"):
        await DirectoryBlobs.shared(tmp_path, "run", b"another", LIMIT)
    await DirectoryBlobs.shared(tmp_path, "another run", b"another", LIMIT)


async def test_folder_of_blobs_that_is_not_mounted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="is its volume mounted"):
        await DirectoryBlobs.shared(tmp_path / "missing", "run", b"owner", LIMIT)


# Objects that clients put


async def granted(blobs: ObjectBlobs, data: bytes, sender: ClientId, sent: bytes | None = None) -> Sha256:
    """Let a client put an announced blob, or other bytes of its length, where one coordinator says."""
    digest = sha256_hex(data)
    put = await blobs.signed_put(digest, len(data), sender)
    headers = {key: value for key, value in put.headers.items() if not key.startswith("x-amz-checksum")}
    async with httpx.AsyncClient() as http:
        answer = await http.put(put.url, content=sent or data, headers=headers)
    assert answer.status_code == 200, answer.text
    return digest


async def test_object_that_one_coordinator_granted_is_taken_in_by_another(s3_url: str, bucket: Any) -> None:
    one, other = [await object_blobs(s3_url, LIMIT, SharedObjectBlobs) for _ in range(2)]
    digest = await granted(one, DATA, ONE)
    found = await other.take_in(digest, len(DATA), ONE)
    assert found is not None
    assert await one.size(digest) is None, "it is not checked yet"
    assert await one.held() == frozenset()
    await other.settle(digest, len(DATA), ONE, digest)
    assert await one.size(digest) == len(DATA)
    assert await one.take_in(digest, len(DATA), ONE) is None


async def test_object_that_is_held_is_not_overwritten_by_way_of_another(s3_url: str, bucket: Any) -> None:
    one, other = [await object_blobs(s3_url, LIMIT, SharedObjectBlobs) for _ in range(2)]
    digest = await put(one, DATA)
    await granted(other, DATA, TWO, DATA[::-1])
    assert await other.take_in(digest, len(DATA), TWO) is None
    assert await blob_bytes(one, digest) == DATA


async def test_object_that_one_coordinator_refuses_is_held_by_none(s3_url: str, bucket: Any) -> None:
    one, other = [await object_blobs(s3_url, LIMIT, SharedObjectBlobs) for _ in range(2)]
    digest = await granted(one, DATA, ONE, DATA[::-1])
    assert await one.take_in(digest, len(DATA), ONE) is not None
    with pytest.raises(Refused) as refused:
        await one.settle(digest, len(DATA), ONE, sha256_hex(DATA[::-1]))
    assert refused.value.kind is Refusal.BLOB_MISMATCH
    assert await other.size(digest) is None
