"""A store is a URL: what is opened, and what is refused by name."""

import os
from pathlib import Path

import pytest

from epochal.coordinator.machine.journal_records import Snapshot
from epochal.coordinator.store.open import open_store, open_store_reader, runs_in
from epochal.state.errors import InvalidInput


async def kept_run(url: str) -> None:
    store = await open_store(url, max_blob_bytes=0)
    await store.journal.open_segment(Snapshot(0, b"start"))
    await store.aclose()


async def first_snapshot(url: str) -> bytes:
    segments = [segment async for segment in open_store_reader(url).journal.history()]
    return segments[0].snapshot.body


async def test_store_of_a_folder_and_of_its_file_url_are_one(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    await kept_run(str(folder))
    for url in (str(folder), folder.as_uri(), f"file://localhost{folder.as_uri().removeprefix('file://')}"):
        assert await first_snapshot(url) == b"start"


async def test_store_of_a_relative_folder_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await kept_run("runs/one")
    assert await first_snapshot("runs/one") == b"start"


async def test_store_of_the_folder_that_up_made_is_the_run_inside(tmp_path: Path) -> None:
    await kept_run(str(tmp_path / "up" / "coordinator"))
    assert await first_snapshot(str(tmp_path / "up")) == b"start"
    store = await open_store(str(tmp_path / "up"), max_blob_bytes=0)
    loaded = await store.journal.load()
    assert loaded is not None
    assert loaded.snapshot.body == b"start"
    await store.aclose()


@pytest.mark.parametrize(
    "url",
    [
        *("", "mysql://host/db", "s3://bucket/run", "file:run", "file://host/run"),
        *("file:///run?x=1", "file:///run#x", "file:///run%00"),
    ],
)
async def test_store_of_an_unknown_kind_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"a folder, file:///PATH/OF/A/FOLDER, or postgresql://") as refused:
        await open_store(url, max_blob_bytes=0)
    assert url in str(refused.value)
    with pytest.raises(InvalidInput):
        open_store_reader(url)


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql:/u:s3cret@h/x", "postgresl://u:s3cret@h/x", "POSTGRESQL://u:s3cret@h/x", "u:s3cret@h/x"),
        *("postgresql:u:s3cret@h", "host=h password=s3cret", "mysql://u:s3c#s3cret@h/x", "mysql://u:s3cret@[::1/x"),
    ],
)
async def test_mistyped_database_becomes_no_folder_and_shows_no_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (None, tmp_path):
        with pytest.raises(InvalidInput) as refused:
            await open_store(url, max_blob_bytes=0, blobs_folder=folder)
        assert "s3c" not in str(refused.value)
    for read in (open_store_reader, runs_in):
        with pytest.raises(InvalidInput) as refused:
            read(url)
        assert "s3c" not in str(refused.value)
    assert os.listdir(tmp_path) == []


def test_store_whose_name_the_system_refuses_is_an_input_error() -> None:
    with pytest.raises(InvalidInput, match="too long"):
        open_store_reader("x" * 5_000)


def test_store_reader_of_a_folder_without_a_run_says_what_it_expects(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidInput, match="runs/RUN_ID") as refused:
            open_store_reader(str(folder))
        assert str(folder) in str(refused.value)
    assert list(tmp_path.iterdir()) == []
