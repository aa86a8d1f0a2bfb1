"""Local files that change under a run: true bytes are read, others never where a manifest lists them."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import epochal.data_providers.providers.unchanged_file
from epochal.data_providers.protocol import CorruptData, DatasetSpec, SourceUnavailable
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.unchanged_file import FileVersion, KeptFile
from epochal.data_providers.sources.manifest import MANIFEST_NAME, MIN_BLOCK_BYTES, ListedFile, parse_manifest
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.state.intervals import DataIds
from tests.support.data.data_files import open_lines, open_rows

SPEC = DatasetSpec(2, 64, bytes(32))
ALL = DataIds(0, 299)
LONG_AGO_NS = 10**18
NOTHING_IS_YOUNG = -(10**18)


def rewrite(path: Path, data: bytes) -> None:
    """Write a file's bytes in place, and give it its old time of modification."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_file(path: Path, data: bytes) -> None:
    """Rename a file of other bytes over one."""
    other = path.with_name(".other")
    other.write_bytes(data)
    other.replace(path)


def content(path: Path) -> bytes:
    """Return a file's bytes."""
    return path.read_bytes()


CHANGES = [rewrite, replace_file]


@pytest.fixture(params=["settled", "young"])
def settling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose times are beyond doubt, and files that may change again at the same time."""
    if request.param == "settled":
        monkeypatch.setattr(epochal.data_providers.providers.unchanged_file, "SETTLED_NS", NOTHING_IS_YOUNG)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    np.arange(64 * 300, dtype="<u2").tofile(tmp_path / "a.bin")
    write_manifest(tmp_path, ["a.bin"], MIN_BLOCK_BYTES)
    return tmp_path / "a.bin"


@pytest.mark.usefixtures("settling")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("was_read", [False, True])
async def test_listed_file_with_other_bytes_is_refused_until_they_are_back(
    listed: Path, was_read: bool, change: Callable[[Path, bytes], None]
) -> None:
    true = content(listed)
    provider = LocalDataProvider.open(listed.parent, SPEC)
    expected = (await LocalDataProvider.open(listed.parent, SPEC).get_samples(ALL)).input_ids
    if was_read:
        await provider.get_samples(ALL)
    for _ in range(2):
        change(listed, true[::-1])
        for _ in range(2):
            with pytest.raises(CorruptData, match=r"a\.bin: block \d+ .* hash is [0-9a-f]{32}, .* says [0-9a-f]{32};"):
                await provider.get_samples(ALL)
        change(listed, true)
        assert np.array_equal((await provider.get_samples(ALL)).input_ids, expected)
    await provider.aclose()


@pytest.mark.usefixtures("settling")
async def test_only_the_blocks_that_changed_are_refused(listed: Path) -> None:
    provider = LocalDataProvider.open(listed.parent, DatasetSpec(2, 64))
    data = bytearray(content(listed))
    data[MIN_BLOCK_BYTES + 9] ^= 1
    rewrite(listed, bytes(data))
    per_block = MIN_BLOCK_BYTES // 128
    assert (await provider.get_samples(DataIds(0, per_block - 1))).input_ids[-1] == per_block * 64 - 1
    with pytest.raises(CorruptData, match="block 1 of 4096 bytes"):
        await provider.get_samples(DataIds(per_block - 1, per_block))
    assert (await provider.get_samples(DataIds(per_block * 2, 299))).input_ids[0] == per_block * 128
    await provider.aclose()


async def test_another_manifest_does_not_change_the_data_of_a_run(listed: Path) -> None:
    provider = LocalDataProvider.open(listed.parent, SPEC)
    rewrite(listed, content(listed)[::-1])
    write_manifest(listed.parent, ["a.bin"], MIN_BLOCK_BYTES)
    with pytest.raises(CorruptData, match="differs from the manifest"):
        await provider.get_samples(ALL)
    assert LocalDataProvider.open(listed.parent, SPEC).fingerprint != provider.fingerprint
    await provider.aclose()


async def test_blocks_are_compared_once_after_each_change(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.providers.unchanged_file, "SETTLED_NS", NOTHING_IS_YOUNG)
    compared: list[int] = []
    check = epochal.data_providers.providers.unchanged_file.check_block

    def counted(path: Path, listed: ListedFile, number: int, body: bytes | memoryview) -> None:
        compared.append(number)
        check(path, listed, number, body)

    monkeypatch.setattr(epochal.data_providers.providers.unchanged_file, "check_block", counted)
    provider = LocalDataProvider.open(listed.parent, SPEC)
    await provider.get_samples(ALL)
    assert not compared
    for _ in range(2):
        os.utime(listed)
        for _ in range(3):
            await provider.get_samples(ALL)
        assert sorted(compared) == list(range(10))
        compared.clear()
    await provider.aclose()


@pytest.mark.parametrize("change", CHANGES)
async def test_file_that_no_manifest_lists_is_read_as_it_is_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "a.bin"
    np.arange(64 * 300, dtype="<u2").tofile(path)
    provider = LocalDataProvider.open(path, DatasetSpec(2, 64))
    await provider.get_samples(ALL)
    change(path, np.arange(64 * 300, dtype="<u2")[::-1].tobytes())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (await provider.get_samples(DataIds(0, 0))).input_ids[0] == 64 * 300 - 1
    assert [(record.message, record.path) for record in caplog.records] == [("data_file_changed", str(path))]  # type: ignore[attr-defined]
    await provider.aclose()


@pytest.mark.usefixtures("settling")
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
@pytest.mark.parametrize("change", CHANGES)
async def test_listed_records_and_rows_with_other_bytes_are_refused(
    tmp_path: Path, suffix: str, change: Callable[[Path, bytes], None]
) -> None:
    path, opener = tmp_path / f"a{suffix}", open_lines if suffix == ".jsonl" else open_rows
    write_samples(path, 7)
    true = content(path)
    write_manifest(tmp_path, [path.name])
    provider = await opener(path)
    expected = (await provider.get_samples(DataIds(0, 0))).input_ids.tolist()
    write_samples(tmp_path / f"b{suffix}", 8)
    other = (tmp_path / f"b{suffix}").read_bytes()
    assert len(other) == len(true)
    change(path, other)
    with pytest.raises(CorruptData, match=r"a\.\w+: block 0 .* differs from the manifest: its hash is"):
        await provider.get_samples(DataIds(1, 1))
    change(path, true)
    provider_of_now = await opener(path)
    assert (await provider.get_samples(DataIds(0, 0))).input_ids.tolist() == expected
    assert provider_of_now.fingerprint == provider.fingerprint
    await provider.aclose()
    await provider_of_now.aclose()


def write_samples(path: Path, value: int) -> None:
    """Write two samples, the second of them in a row group or batch of its own."""
    rows = [[value] * 4, [value] * 4]
    table = pa.table({"inputs": rows})
    if path.suffix == ".jsonl":
        path.write_text("".join(f'{{"text": "{row}"}}\n' for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=1, compression="none")
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)


async def test_a_file_without_a_manifest_that_never_rests_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(64))
    kept = KeptFile(path, FileVersion.of(path.stat()))
    read = epochal.data_providers.providers.unchanged_file.read_whole
    times = iter(range(100))

    def read_while_it_changes(fd: int, offset: int, into: memoryview, where: Path) -> None:
        read(fd, offset, into, where)
        os.utime(where, ns=(0, LONG_AGO_NS + next(times)))

    monkeypatch.setattr(epochal.data_providers.providers.unchanged_file, "read_whole", read_while_it_changes)
    with path.open("rb") as file, pytest.raises(SourceUnavailable, match="changed 4 times while it was read"):
        kept.read(file.fileno(), 0, memoryview(bytearray(64)))


def test_young_file_is_compared_until_its_times_tell_changes_apart(
    listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = parse_manifest((listed.parent / MANIFEST_NAME).read_bytes(), "")[listed.name]
    version, into = FileVersion.of(listed.stat()), memoryview(bytearray(64))
    monkeypatch.setattr(epochal.data_providers.providers.unchanged_file, "SETTLED_NS", 10**18)
    kept = KeptFile(listed, version, entry)
    with listed.open("rb") as file:
        kept.read(file.fileno(), 0, into)
        assert not kept.holds(version, 0, 64), "it may have changed since, at the same time"
        monkeypatch.setattr(epochal.data_providers.providers.unchanged_file, "SETTLED_NS", NOTHING_IS_YOUNG)
        assert not kept.holds(version, 0, 64)
        kept.read(file.fileno(), 0, into)
    assert kept.holds(version, 0, 64)
    assert not kept.holds(version, 0, MIN_BLOCK_BYTES + 1)
    assert KeptFile(listed, version, entry).holds(version, 0, MIN_BLOCK_BYTES + 1), "it was settled when it was opened"


def test_warnings_about_one_file_have_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(64))
    kept = KeptFile(path, FileVersion.of(path.stat()))
    with path.open("rb") as file:
        for number in range(3 * epochal.data_providers.providers.unchanged_file.MAX_WARNINGS):
            os.utime(path, ns=(0, LONG_AGO_NS + number))
            kept.read(file.fileno(), 0, memoryview(bytearray(64)))
    assert len(caplog.records) == epochal.data_providers.providers.unchanged_file.MAX_WARNINGS
