"""A run's blobs move from its disk into an object store, and with the whole folder into another one."""

from pathlib import Path
from typing import Any

import pytest

from epochal.coordinator.machine.journal_records import Snapshot
from epochal.coordinator.store.blobs import BlobReader
from epochal.coordinator.store.files.opening import open_folder_reader
from epochal.coordinator.store.open import open_store, open_store_reader
from epochal.coordinator.store.sql.notes import OBJECT_STORE
from epochal.coordinator.store.store import Store
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import InvalidInput, Refused, StoreFailed
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.object_blobs import RUN_ID, s3_place
from tests.support.data.stored_blobs import blob_bytes
from tests.support.servers.s3_door import s3_door

LIMIT = 1_000_000
PIECES = (b"kept first", b"kept then")


async def start_and_keep(run_dir: Path, place: BlobPlace | None, *data: bytes) -> frozenset[Sha256]:
    """Opens the run directory as a start does, keeps these blobs, and returns the digests of all that are held."""
    store = await open_store(str(run_dir), LIMIT, place, RUN_ID)
    try:
        return await _keep(store, run_dir, *data)
    finally:
        await store.aclose()


async def _keep(store: Store, run_dir: Path, *data: bytes) -> frozenset[Sha256]:
    if await store.journal.newest_segment() is None:
        await store.journal.open_segment(Snapshot(0, b"start"))
    for piece in data:

        async def body(piece: bytes = piece) -> Any:
            yield piece

        await store.blobs.receive(sha256_hex(piece), len(piece), body())
    held = await store.blobs.held()
    for sha256 in held:
        assert sha256_hex(await blob_bytes(store.blobs, sha256)) == sha256
    return held


async def note_in(run_dir: Path) -> str | None:
    """Returns the note on object stores of a run in a folder."""
    note = await open_folder_reader(run_dir).notes.read(OBJECT_STORE)
    return None if note is None else note.decode()


async def keys_of(bucket: Any) -> list[str]:
    import obstore

    return [meta["path"] async for chunk in obstore.list(bucket) for meta in chunk]


async def assert_reads(blobs: BlobReader, *data: bytes) -> None:
    for piece in data:
        assert await blobs.size(sha256_hex(piece)) == len(piece)
        assert await blob_bytes(blobs, sha256_hex(piece)) == piece


async def test_run_moves_from_its_disk_to_a_bucket_and_holds_all_blobs(
    bucket: Any, s3_url: str, tmp_path: Path
) -> None:
    await start_and_keep(tmp_path, None, PIECES[0])
    assert await note_in(tmp_path) is None
    held = await start_and_keep(tmp_path, s3_place(s3_url), PIECES[1])
    assert f"training/{RUN_ID}/blobs/{sha256_hex(PIECES[1])}" in await keys_of(bucket)
    assert len(list((tmp_path / "blobs").glob("??/*"))) == 1
    assert held == {sha256_hex(piece) for piece in PIECES[:2]}
    await assert_reads(open_store_reader(str(tmp_path)).blobs, *PIECES[:2])
    with pytest.raises(InvalidInput, match=f"are in s3://tokens/training/{RUN_ID}"):
        await start_and_keep(tmp_path, None)


async def test_blobs_of_all_places_count_towards_the_maximum(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    await start_and_keep(tmp_path, None, b"x" * (LIMIT - 10))
    with pytest.raises(Exception, match="max_total_bytes"):
        await start_and_keep(tmp_path, s3_place(s3_url), b"y" * 11)


async def test_folder_of_another_run_directory_is_refused(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    await start_and_keep(tmp_path / "first", s3_place(s3_url), PIECES[1])
    with pytest.raises(StoreFailed, match="another run directory") as refused:
        await start_and_keep(tmp_path / "second", s3_place(s3_url))
    assert f"s3://tokens/training/{RUN_ID}/owner" in str(refused.value)
    await start_and_keep(tmp_path / "second", s3_place(s3_url, "elsewhere"), PIECES[1])


async def test_bucket_that_does_not_exist_is_named(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    place = s3_place(s3_url).model_copy(update={"bucket_name": "nobody-made-it"})
    with pytest.raises(StoreFailed, match="s3://nobody-made-it/training"):
        await start_and_keep(tmp_path, place)
    await start_and_keep(tmp_path, s3_place(s3_url))  # the lock is free again


async def test_bucket_without_credentials_is_refused(
    bucket: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(InvalidInput, match="needs credentials"):
        await start_and_keep(tmp_path, s3_place(s3_url))


async def test_damaged_note_of_the_stores_is_named(tmp_path: Path) -> None:
    await start_and_keep(tmp_path, None)
    writing = open_folder_reader(tmp_path, writes=True)
    await writing.notes.write(OBJECT_STORE, b"{")
    await writing.aclose()
    with pytest.raises(StoreFailed, match=OBJECT_STORE):
        await start_and_keep(tmp_path, None)


async def test_folder_under_another_address_is_the_same_one(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    with s3_door(s3_url) as door:
        await start_and_keep(tmp_path, s3_place(door.url), PIECES[0])
    for place in (s3_place(s3_url), s3_place(s3_url).model_copy(update={"region": "eu-west-1"})):  # the door is gone
        assert await start_and_keep(tmp_path, place) == {sha256_hex(PIECES[0])}
    await assert_reads(open_store_reader(str(tmp_path)).blobs, PIECES[0])


async def test_run_goes_on_in_another_bucket_once_its_folder_is_copied_there(
    bucket: Any, s3_url: str, tmp_path: Path
) -> None:
    import obstore

    await start_and_keep(tmp_path, s3_place(s3_url), PIECES[0])
    other = s3_place(s3_url, "elsewhere")
    with pytest.raises(InvalidInput, match="another object store than s3://tokens/elsewhere"):
        await start_and_keep(tmp_path, other)
    for key in await keys_of(bucket):
        await obstore.copy_async(bucket, key, key.replace("training", "elsewhere"))
    assert await start_and_keep(tmp_path, other, PIECES[1]) == {sha256_hex(piece) for piece in PIECES[:2]}
    await assert_reads(open_store_reader(str(tmp_path)).blobs, *PIECES[:2])


async def test_blobs_of_all_places_count_where_a_checkpoint_is_added(bucket: Any, s3_url: str, tmp_path: Path) -> None:
    await start_and_keep(tmp_path, None, b"x" * (LIMIT - 10))
    store = await open_store(str(tmp_path), LIMIT, s3_place(s3_url), RUN_ID)

    async def body() -> Any:
        yield b"y" * 11

    with pytest.raises(Refused, match="max_total_bytes"):
        await store.blobs.add(11, body())
    await store.aclose()
