"""Small datasets of token files, whose tokens count up over all files."""

from pathlib import Path

import numpy as np

from epochal.data_providers.open_data import OpenOptions, open_files
from epochal.data_providers.protocol import DataProvider, DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.local_source import LocalSource
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.state.intervals import DataIds

SEED = bytes(range(32))
SPEC = DatasetSpec(2, 16, SEED)
FILE_TOKENS = {"c.npy": 16 * 30 + 3, "a.bin": 16 * 50, "b.ds": 16 * 21 + 15, "short.bin": 5, "empty.bin": 0}
SEQUENCE_COUNT = 101


def write_dataset(folder: Path, spec: DatasetSpec = SPEC) -> Path:
    """The folder with the files of `FILE_TOKENS`, and one that is no token file; tokens count up over all files."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = 0
    for name, count in sorted(FILE_TOKENS.items()):
        tokens = np.arange(begin, begin + count, dtype=spec.dtype)
        if name.endswith(".npy"):
            np.save(folder / name, tokens)
        else:
            tokens.tofile(folder / name)
        begin += count
    (folder / "notes.txt").write_text("no tokens")
    return folder


async def assert_serves_the_files(
    provider: DataProvider, folder: Path, *intervals: DataIds, spec: DatasetSpec = SPEC
) -> None:
    """Compare a provider with the files of a folder, by fingerprint and samples, and close it."""
    local = LocalDataProvider.open(folder, spec)
    assert provider.fingerprint == local.fingerprint
    for data_ids in intervals:
        served, held = await provider.get_samples(data_ids), await local.get_samples(data_ids)
        assert np.array_equal(served.input_ids, held.input_ids)
    await provider.aclose()
    await local.aclose()


def expected_tokens(spec: DatasetSpec, samples: list[tuple[int, int]]) -> list[int]:
    """The tokens of samples given as (file's position by name, number within the file)."""
    counts = [count for _, count in sorted(FILE_TOKENS.items())]
    begins = [sum(counts[:number]) for number in range(len(counts))]
    length = spec.sequence_length
    return [begins[file] + number * length + i for file, number in samples for i in range(length)]


async def open_lines(path: Path, seed: bytes | None = None, split: str = "train") -> RecordsDataProvider:
    """The records of a file or a folder on this machine."""
    options = OpenOptions("run", None, OWNERS, packs=True, split=split)
    provider = await _opened(path, DatasetSpec(2, 1, seed), options)
    assert isinstance(provider, RecordsDataProvider)
    return provider


async def open_rows(
    path: Path, max_tokens: int | None = None, split: str = "train", *, packs: bool = False
) -> PreprocessedDataProvider:
    """The rows of a file or a folder on this machine."""
    options = OpenOptions("run", None, OWNERS, packs=packs, split=split)
    provider = await _opened(path, DatasetSpec(2, max_tokens or 1_000_000), options, are_rows=True)
    assert isinstance(provider, PreprocessedDataProvider)
    return provider


async def _opened(path: Path, spec: DatasetSpec, options: OpenOptions, *, are_rows: bool = False) -> DataProvider:
    source = LocalSource.open(path)
    is_folder = [file.name for file in source.files] != [path.name]
    return await open_files(source, spec, options, listed=is_folder, are_rows=are_rows)
