"""Every store keeps the whole of a run alike: one suite, run on each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.open import open_store
from epochal.coordinator.store.store import Store
from tests.support.data.database_store import database_store


@pytest.fixture(params=("directory", "postgres"))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "postgres":
        opened = await database_store(request.getfixturevalue("database_server").url())
    else:
        opened = await open_store(str(tmp_path / "run"), 0)
    yield opened
    await opened.aclose()


async def test_store_counts_the_journals_bytes(store: Store) -> None:
    await store.journal.open_segment(Snapshot(0, b"start"))
    before = store.journal.size_bytes
    await store.journal.append(JournalRecord(1, b"one"))
    assert store.journal.size_bytes >= before + 3


async def test_store_makes_its_private_key_once(store: Store) -> None:
    assert await store.keys.private_key() is None
    key = await store.keys.create_private_key()
    assert len(key) == 32
    assert await store.keys.create_private_key() == await store.keys.private_key() == key


async def test_store_replaces_its_private_key(store: Store) -> None:
    keys = [await store.keys.replace_private_key() for _ in range(3)]
    assert len(set(keys)) == 3
    assert await store.keys.private_key() == keys[-1]


async def test_store_keeps_the_newest_admin_tokens_hash(store: Store) -> None:
    assert await store.keys.admin_token_sha256() is None
    for digest in (b"1" * 32, b"2" * 32):
        await store.keys.keep_admin_token_sha256(digest)
        assert await store.keys.admin_token_sha256() == digest


async def test_store_makes_the_admin_tokens_hash_once(store: Store) -> None:
    for digest in (b"1" * 32, b"2" * 32):
        assert await store.keys.create_admin_token_sha256(digest) == b"1" * 32


async def test_store_takes_a_state_file_again_and_again(store: Store) -> None:
    for text in ("first", "second"):
        await store.place.save_state_file(text)


async def test_store_closed_twice_is_closed(store: Store) -> None:
    await store.aclose()
    await store.aclose()


async def test_store_that_nobody_copies_may_be_swept(store: Store) -> None:
    for _ in range(2):
        async with store.place.sweeping() as is_allowed:
            assert is_allowed


async def test_store_is_not_swept_while_anybody_copies_it(store: Store) -> None:
    async with store.place.copying():
        async with store.place.copying():
            pass
        async with store.place.sweeping() as is_allowed:
            assert not is_allowed
    async with store.place.sweeping() as is_allowed:
        assert is_allowed


async def test_store_may_be_swept_as_soon_as_nobody_copies_it(store: Store) -> None:
    for _ in range(50):
        async with store.place.copying():
            pass
        async with store.place.sweeping() as is_allowed:
            assert is_allowed


async def test_store_that_was_never_copied_from_is_no_backup(store: Store) -> None:
    assert not store.is_backup
    await store.note_served()
