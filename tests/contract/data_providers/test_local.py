"""`LocalDataProvider`: files that are missing, changed, too many, or not what they should be."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers import local_source
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.state.intervals import DataIds
from tests.support.data.data_files import SEQUENCE_COUNT, SPEC, write_dataset
from tests.support.data.data_formats import write_megatron


def open_descriptors(folder: Path) -> int:
    """Return how many of this process's descriptors are of files in the folder."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(folder)
    return found


@pytest.mark.parametrize("nowait", [local_source._NOWAIT, None, 0x40000000], ids=["at once", "thread", "unknown"])
async def test_local_reads_the_same_at_once_and_in_a_thread(
    nowait: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await LocalDataProvider.open(write_dataset(tmp_path), SPEC).get_samples(DataIds(0, 300))
    monkeypatch.setattr(local_source, "_NOWAIT", nowait)
    provider = LocalDataProvider.open(tmp_path, SPEC)
    for _ in range(2):
        assert np.array_equal((await provider.get_samples(DataIds(0, 300))).input_ids, expected.input_ids)


async def test_local_single_file_is_a_dataset(tmp_path: Path) -> None:
    provider = LocalDataProvider.open(write_dataset(tmp_path) / "a.bin", DatasetSpec(2, 16))
    assert (await provider.get_samples(DataIds(3, 3))).input_ids.tolist() == list(range(48, 64))
    assert provider.sequence_count == 50


@pytest.mark.parametrize("name", ["a.npy", "a.ds"])
async def test_local_single_file_has_nothing_to_do_with_the_index_of_another(tmp_path: Path, name: str) -> None:
    write_megatron(tmp_path, "a", [np.arange(40, dtype="<u2")])
    np.arange(32, dtype="<u2").tofile(tmp_path / name)
    provider = LocalDataProvider.open(tmp_path / name, DatasetSpec(2, 16))
    assert (await provider.get_samples(DataIds(1, 1))).input_ids.tolist() == list(range(16, 32))
    assert provider.sequence_count == 2
    await provider.aclose()


@pytest.mark.parametrize(("was_read", "message"), [(False, "now has 2"), (True, r"a\.bin ends")])
async def test_local_file_that_shrinks_is_corrupt(tmp_path: Path, was_read: bool, message: str) -> None:
    provider = LocalDataProvider.open(write_dataset(tmp_path), SPEC)
    if was_read:  # and is open
        await provider.get_samples(DataIds(0, SEQUENCE_COUNT - 1))
    os.truncate(tmp_path / "a.bin", 2)
    with pytest.raises(CorruptData, match=message):
        await provider.get_samples(DataIds(0, SEQUENCE_COUNT - 1))


async def test_local_file_that_vanished_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    provider = LocalDataProvider.open(write_dataset(tmp_path), SPEC)
    (tmp_path / "a.bin").rename(tmp_path / "away")
    with pytest.raises(SourceUnavailable):
        await provider.get_samples(DataIds(0, SEQUENCE_COUNT - 1))
    (tmp_path / "away").rename(tmp_path / "a.bin")
    assert (await provider.get_samples(DataIds(0, SEQUENCE_COUNT - 1))).sample_count == SEQUENCE_COUNT


def test_local_place_without_samples_is_rejected_or_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="nowhere cannot be read: No such file or directory; check the path"):
        LocalDataProvider.open(tmp_path / "nowhere", SPEC)
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(CorruptData, match="no token files"):
        LocalDataProvider.open(tmp_path, SPEC)
    np.zeros(15, "<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(CorruptData, match="no sequence of 16 tokens"):
        LocalDataProvider.open(tmp_path, SPEC)


async def test_local_keeps_few_files_open_and_closes_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_source, "MAX_OPEN_FILES", 4)
    for number in range(30):
        np.full(32, number, "<u2").tofile(tmp_path / f"{number:02}.bin")
    before = open_descriptors(tmp_path)
    provider = LocalDataProvider.open(tmp_path, DatasetSpec(2, 16))
    batch = await provider.get_samples(DataIds(0, 119))
    assert batch.rows()[:, 0].tolist() == [number // 2 for number in range(60)] * 2
    assert open_descriptors(tmp_path) <= before + 4
    await provider.aclose()
    assert open_descriptors(tmp_path) == before


async def test_local_file_that_shrinks_keeps_the_samples_that_are_whole(tmp_path: Path) -> None:
    provider = LocalDataProvider.open(write_dataset(tmp_path), replace(SPEC, shuffle_seed=None))
    whole = (await provider.get_samples(DataIds(0, 1))).input_ids
    os.truncate(tmp_path / "a.bin", 2 * SPEC.sequence_bytes + 1)
    assert np.array_equal((await provider.get_samples(DataIds(0, 1))).input_ids, whole)
    with pytest.raises(CorruptData, match=r"a\.bin ends at byte"):
        await provider.get_samples(DataIds(1, 2))
