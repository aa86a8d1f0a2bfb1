"""Preprocessed samples in parquet files, written by pyarrow as anyone would."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.data_providers.formats import columns
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable, TooManyBytes
from epochal.data_providers.providers import preprocessed
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import Preprocessed
from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import open_rows
from tests.support.heavy import need_module

ROWS = [[number, number + 1, *range(number % 4)] for number in range(23)]


@pytest.fixture(autouse=True)
def _pyarrow() -> None:
    need_module("pyarrow")


def write(path: Path, row_group_size: int = 4, **columns: Any) -> Path:
    """A parquet file with these columns."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
    return path


async def samples(provider: PreprocessedDataProvider, start: int, end: int) -> list[list[int]]:
    batch = await provider.get_samples(DataIds(start, end))
    assert batch.input_ids.dtype == np.dtype("<u4")
    return [batch.input_ids[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


async def test_rows_are_samples_in_the_files_order_pass_after_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "b.parquet", inputs=ROWS[10:])
    write(tmp_path / "a.parquet", inputs=ROWS[:10])
    with caplog.at_level(logging.INFO):
        provider = await open_rows(tmp_path)
    assert [one.__dict__["fingerprint"] for one in caplog.records] == [provider.fingerprint], "the log's is the data's"
    assert provider.sequence_count == 23
    for start, end in [(0, 22), (3, 3), (9, 10), (20, 50), (46, 68)]:
        assert await samples(provider, start, end) == [ROWS[number % 23] for number in range(start, end + 1)]
    await provider.aclose()


async def test_labels_positions_and_documents_come_with_their_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        inputs=ROWS,
        labels=[[-100, *row[1:]] for row in ROWS],
        position_ids=[list(range(len(row))) for row in ROWS],
        sequence_lengths=[[2, len(row) - 2] for row in ROWS],
    )
    provider = await open_rows(path)
    batch = await provider.get_samples(DataIds(5, 9))
    wanted = ROWS[5:10]
    assert batch.labels is not None
    assert batch.labels.tolist() == [token for row in wanted for token in [-100, *row[1:]]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [place for row in wanted for place in range(len(row))]
    assert batch.sequence_lengths is not None
    assert batch.sequence_lengths.tolist() == [length for row in wanted for length in (2, len(row) - 2)]
    await provider.aclose()


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed", "uint16", "int8"])
async def test_every_kind_of_integer_list_is_read(tmp_path: Path, kind: str) -> None:
    import pyarrow

    rows = [[1, 2, 3], [4, 5, 6]]
    types = {
        "list": pyarrow.list_(pyarrow.int64()),
        "large_list": pyarrow.large_list(pyarrow.uint32()),
        "fixed": pyarrow.list_(pyarrow.int32(), 3),
        "uint16": pyarrow.list_(pyarrow.uint16()),
        "int8": pyarrow.list_(pyarrow.int8()),
    }
    provider = await open_rows(write(tmp_path / "a.parquet", inputs=pyarrow.array(rows, types[kind])))
    assert await samples(provider, 0, 1) == rows


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ],
            2,
        ),
        (["train-00000-of-00001-0123456789abcdef.parquet", "validation-00000-of-00001.parquet"], 1),
        (["train/0.parquet", "train/1.parquet", "test/0.parquet"], 2),
        (["any.parquet", "other.parquet", "third.parquet"], 3),
        (["my_train_set.parquet", "Validation.parquet", "pretrained.parquet"], 1),
        (["train/train-00000-of-00002.parquet", "train/train-00001-of-00002.parquet"], 2),
        (["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"], 2),
        (["en/train-00000-of-00001.parquet", "en/test-00000-of-00001.parquet"], 1),
    ],
)
async def test_folders_are_split_as_datasets_writes_them(tmp_path: Path, names: list[str], taken: int) -> None:
    for name in names:
        write(tmp_path / name, inputs=[[len(name)]])
    assert (await open_rows(tmp_path)).sequence_count == taken


async def test_folder_of_several_splits_without_train_asks_which(tmp_path: Path) -> None:
    for split in ("dev", "test"):
        write(tmp_path / split / "0.parquet", inputs=[[1]])
    with pytest.raises(InvalidInput, match="dev, test and no split 'train'"):
        await open_rows(tmp_path)


async def test_folder_of_several_configurations_asks_which(tmp_path: Path) -> None:
    for name in ("en/train-00000-of-00001.parquet", "de/train/0.parquet"):
        write(tmp_path / name, inputs=[[1]])
    with pytest.raises(InvalidInput, match="the same split in de, en; name the folder of one"):
        await open_rows(tmp_path)
    assert (await open_rows(tmp_path / "de")).sequence_count == 1


async def test_row_group_that_decodes_to_too_much_is_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", row_group_size=40, inputs=[[7] * 2000] * 40)
    provider = await open_rows(path)
    assert path.stat().st_size < 5000
    monkeypatch.setattr(columns, "MAX_ROW_GROUP_BYTES", 300_000)
    with pytest.raises(CorruptData, match=r"row group 0 has \d+ bytes or more; at most 300000: write smaller"):
        await provider.get_samples(DataIds(0, 0))
    monkeypatch.setattr(columns, "MAX_ROW_GROUP_BYTES", 700_000)
    assert (await provider.get_samples(DataIds(0, 39))).input_ids.tolist() == [7] * 80_000


async def test_row_group_of_many_bytes_is_refused_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_ROW_GROUP_BYTES", 10)
    with pytest.raises(CorruptData, match=r"row group 0 has \d+ bytes or more; at most 10: write smaller"):
        await open_rows(write(tmp_path / "a.parquet", inputs=ROWS))


async def test_column_that_is_there_twice_is_corrupt(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(ROWS)] * 2, names=["inputs", "inputs"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(CorruptData, match="several columns 'inputs'"):
        await open_rows(tmp_path)


BAD_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({"tokens": [[1]]}, "one must be 'inputs'"),
    "no lists": ({"inputs": [1, 2]}, "allowed: lists of integers"),
    "floats": ({"inputs": [[1.5]]}, "allowed: lists of integers"),
    "a null row": ({"inputs": [[1], None]}, "has nulls"),
    "a null token": ({"inputs": [[1, None]]}, "has nulls"),
    "a negative token": ({"inputs": [[1, -7]]}, "token -7"),
    "a token beyond 32 bits": ({"inputs": [[2**32]]}, "token 4294967296"),
    "labels of another length": ({"inputs": [[1, 2]], "labels": [[1]]}, "labels and inputs differ in length"),
    "documents that do not add up": ({"inputs": [[1, 2]], "sequence_lengths": [[1]]}, "do not add up"),
    "documents of less than nothing": ({"inputs": [[1, 2, 3]], "sequence_lengths": [[1, 2, -1, 1]]}, "add up"),
}


@pytest.mark.parametrize(("columns", "message"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
async def test_columns_that_are_no_samples_are_corrupt(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.parquet", **columns)
    with pytest.raises(CorruptData, match=message):
        await (await open_rows(path)).get_samples(DataIds(0, 0))


async def test_sample_longer_than_the_runs_is_corrupt(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", inputs=[[1, 2], [1, 2, 3]])
    provider = await open_location(
        Preprocessed(str(tmp_path)), DatasetSpec(2, 2), OpenOptions("run", lambda: "", OWNERS)
    )
    assert (await provider.get_samples(DataIds(0, 0))).sample_count == 1
    with pytest.raises(CorruptData, match="a sample has 3 tokens; the run's max_seq_len is 2"):
        await provider.get_samples(DataIds(1, 1))


async def test_files_of_different_columns_do_not_go_together(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", inputs=[[1]])
    write(tmp_path / "b.parquet", inputs=[[1]], labels=[[1]])
    with pytest.raises(CorruptData, match="has columns"):
        await open_rows(tmp_path)


async def test_empty_folder_and_missing_path_are_said(tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match="holds no parquet files"):
        await open_rows(tmp_path)
    with pytest.raises(Rejected, match=r"absent\.parquet cannot be read: No such file or directory; check the path"):
        await open_rows(tmp_path / "absent.parquet")


async def test_file_that_is_cut_is_corrupt_and_one_that_vanished_unavailable(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", inputs=ROWS)
    provider = await open_rows(path)
    path.rename(tmp_path / "away")
    with pytest.raises(SourceUnavailable):
        await provider.get_samples(DataIds(0, 0))
    (tmp_path / "away").rename(path)
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(CorruptData, match="ends at byte 5"):
        await provider.get_samples(DataIds(0, 0))


async def test_request_of_too_much_is_rejected_and_decoded_groups_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = await open_rows(write(tmp_path / "a.parquet", inputs=[[1] * 100] * 40))
    monkeypatch.setattr(preprocessed, "MAX_DECODED_BYTES", 5000)
    for number in range(40):
        await provider.get_samples(DataIds(number, number))
        assert provider._decoded_bytes <= 5000
    with pytest.raises(TooManyBytes, match="ask for fewer"):
        await provider.get_samples(DataIds(0, 5), 1000)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=5),
    cut=st.none() | st.integers(0, 600),
)
async def test_damaged_file_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]], cut: int | None) -> None:
    path = tmp_path / "a.parquet"
    data = bytearray(write(path, inputs=ROWS, labels=ROWS).read_bytes())
    for at, value in changes:
        data[at % len(data)] = value
    path.write_bytes(data[:cut])
    try:
        provider = await open_rows(path)
        await provider.get_samples(DataIds(0, provider.sequence_count - 1))
    except DataError:
        return
