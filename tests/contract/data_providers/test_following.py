"""A provider of data that grow: it finds the run's data, picks appended files up, and says what is not here yet."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.protocol import DataProvider, DatasetSpec, SourceUnavailable
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.growing_data import FollowingDataProvider, found_among
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime.retry import RetryPolicy
from epochal.state.generations import DataGeneration, Generations, SizedDataset, with_appended
from epochal.state.intervals import DataIds

SPEC = DatasetSpec(2, 16, bytes(32))


def write(folder: Path, name: str, count: int, first: int) -> None:
    folder.mkdir(exist_ok=True)
    np.repeat(first + np.arange(count), 16).astype("<u2").tofile(folder / name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data", "a.bin", 10, 0)
    return tmp_path / "data"


def grow(folder: Path) -> None:
    write(folder, "b.bin", 5, 10)


def opened(folder: Path) -> LocalDataProvider:
    return LocalDataProvider.open(folder, SPEC)


def reopening(folder: Path) -> Callable[[], Awaitable[DataProvider]]:
    async def reopen() -> DataProvider:
        return opened(folder)

    return reopen


def sized(provider: LocalDataProvider) -> SizedDataset:
    return SizedDataset(provider.fingerprint, provider.sequence_count, len(provider.order.files))


def generations_of(folder: Path) -> Generations:
    """The folder before and after it grows, which it does here."""
    before = sized(opened(folder))
    grow(folder)
    return with_appended((), before, sized(opened(folder)), 1)


async def numbers(provider: DataProvider, start: int, end: int) -> list[int]:
    found: list[int] = (await provider.get_samples(DataIds(start, end))).rows()[:, 0].tolist()
    return found


async def test_appended_files_are_picked_up_without_a_restart(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", "a.bin", 10, 0)
    generations = generations_of(tmp_path / "other")
    provider = FollowingDataProvider(opened(folder), reopening(folder))
    old = provider.fingerprint
    assert not await provider.follow(generations, old)
    assert provider.is_behind
    assert sorted(await numbers(provider, 0, 9)) == list(range(10))
    with pytest.raises(SourceUnavailable, match="data index 10 is of data that have grown to 15 samples in 2 files"):
        await provider.get_samples(DataIds(9, 10))
    await provider.look_again()
    assert provider.is_behind, "nothing has arrived"
    grow(folder)
    await provider.look_again()
    assert (provider.is_behind, provider.fingerprint) == (False, generations[1].fingerprint)
    assert provider.serves(old)
    assert sorted(await numbers(provider, 10, 24)) == list(range(15))
    assert sorted(await numbers(provider, 0, 9)) == list(range(10))
    assert provider.description is not None
    assert provider.description.file_count == 2
    await provider.aclose()


async def test_catching_up_ends_once_the_files_are_here(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for place in (folder, tmp_path / "other"):
        write(place, "a.bin", 4219, 0)  # as no other test: each dataset is logged once by a process
    generations = generations_of(tmp_path / "other")
    provider = FollowingDataProvider(opened(folder), reopening(folder))
    await provider.follow(generations, None)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 7:
            grow(folder)

    policy = RetryPolicy(sleep=sleep, jitter=lambda: 1.0)
    await provider.catch_up(policy)
    assert provider.fingerprint == generations[1].fingerprint
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    messages = [record.message for record in caplog.records]
    assert (messages.count("data_are_behind"), messages.count("dataset opened")) == (1, 2), "before and after"
    await provider.aclose()


async def test_folder_with_more_files_than_the_runs_is_read_without_them(folder: Path) -> None:
    run = opened(folder).fingerprint
    grow(folder)
    provider = FollowingDataProvider(opened(folder), reopening(folder))
    assert await provider.follow((), run)
    assert (provider.fingerprint, provider.sequence_count) == (run, 10)
    assert provider.description is not None
    assert (provider.description.file_count, provider.description.sample_count) == (1, 10)
    assert sorted(await numbers(provider, 10, 19)) == list(range(10)), "the second pass is of the run's files"
    await provider.aclose()


async def test_data_with_a_manifest_serve_a_run_that_knows_names_and_sizes(folder: Path) -> None:
    run = opened(folder).fingerprint
    write_manifest(folder, ["a.bin"])
    assert opened(folder).fingerprint != run
    provider = FollowingDataProvider(opened(folder), reopening(folder))
    assert await provider.follow((), run)
    assert provider.fingerprint == run
    await provider.aclose()


async def test_data_that_cannot_be_opened_again_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", "a.bin", 10, 0)
    generations = generations_of(tmp_path / "other")

    async def reopen() -> DataProvider:
        raise SourceUnavailable("the disk is away")

    provider = FollowingDataProvider(opened(folder), reopen)
    await provider.follow(generations, None)
    await provider.look_again()
    assert sorted(await numbers(provider, 0, 9)) == list(range(10))
    await provider.aclose()


async def test_an_append_that_is_taken_back_leaves_the_runs_first_data(folder: Path) -> None:
    generations = generations_of(folder)
    provider = FollowingDataProvider(opened(folder), reopening(folder))
    await provider.follow(generations, generations[0].fingerprint)
    assert provider.fingerprint == generations[1].fingerprint
    assert await provider.follow((), generations[0].fingerprint)
    assert provider.fingerprint == generations[0].fingerprint
    assert sorted(await numbers(provider, 10, 19)) == list(range(10))
    await provider.aclose()


async def test_provider_without_files_is_one_of_the_generations_as_a_whole() -> None:
    dummy = DummyDataProvider(SPEC)
    generations = (DataGeneration(0, "aa" * 32, 5, 1), DataGeneration(5, dummy.fingerprint, 6, 2))
    with contextlib.suppress(ValueError):
        generations = (generations[0], DataGeneration(10, dummy.fingerprint, 6, 2))
    provider = FollowingDataProvider(dummy, reopening(Path()))
    await provider.follow(generations, None)
    assert not provider.is_behind
    assert provider.serves("aa" * 32)
    assert found_among(dummy, "aa" * 32) is None
    await provider.aclose()


async def test_appended_files_on_which_nobody_can_train_are_not_taken(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(folder)
    generations = generations_of(folder)
    looked: list[int] = []
    problems = ["b.bin: was made with another tokenizer"]

    async def look(grown: DataProvider, file_count: int) -> list[str]:
        assert grown.sequence_count == 15
        looked.append(file_count)
        return problems

    provider = FollowingDataProvider(first, reopening(folder), look)
    await provider.follow(generations, None)
    for _ in range(2):
        await provider.look_again()
        assert provider.is_behind
    assert sorted(await numbers(provider, 0, 9)) == list(range(10))
    assert [record.message for record in caplog.records].count("appended_data_refused") == 1
    assert looked == [1, 1]
    problems.clear()
    await provider.look_again()
    assert sorted(await numbers(provider, 10, 24)) == list(range(15))
    await provider.aclose()
