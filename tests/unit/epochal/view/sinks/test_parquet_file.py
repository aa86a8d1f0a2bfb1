"""The parquet sink: one file that can be read at any time, whatever happens to its writer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.remote.history_arrays import HistoryArrays
from epochal.state.errors import InvalidInput
from epochal.state.messages.history_rows import FIGURES, RoundFigures
from epochal.view.sinks.sink import Mark, SinkPlace
from tests.support.data.figure_rows import LINEAGE, OTHER_LINEAGE, as_one, row, rows
from tests.support.heavy import need_module
from tests.support.killed_sink import LAST, RUN_ID, feed, kill_at_every_line


@pytest.fixture(autouse=True)
def _pyarrow() -> None:
    need_module("pyarrow")


def sink_in(path: Path) -> Any:
    from epochal.view.sinks.parquet_file import ParquetSink

    return ParquetSink(path)


def read(path: Path) -> list[RoundFigures]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return [RoundFigures(*row) for row in zip(*(table[name].to_pylist() for name in FIGURES), strict=True)]


@pytest.mark.nightly
def test_follower_killed_at_any_line_leaves_each_row_once(tmp_path: Path) -> None:
    shared = ["pyarrow", "pyarrow.parquet"]
    for path in kill_at_every_line("epochal.view.sinks.parquet_file", "ParquetSink", tmp_path, 25, shared):
        assert read(path) == rows(0, LAST), path
        assert [left.name for left in path.parent.iterdir() if not left.name.endswith(".lock")] == ["out"]


def test_part_of_a_killed_follower_is_removed_though_nothing_is_new(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    feed(sink_in(path))
    (tmp_path / ".run.parquet.new").write_bytes(b"a part of a file")
    feed(sink_in(path))
    assert [left.name for left in tmp_path.iterdir() if not left.name.endswith(".lock")] == ["run.parquet"]


def test_file_is_readable_while_it_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("epochal.view.sinks.parquet_file.MERGE_ROWS", 3)
    path = tmp_path / "run.parquet"
    sink = sink_in(path)
    assert sink.open(RUN_ID, LINEAGE) is None
    assert read(path) == []
    sink.write(LINEAGE, rows(0, 1))
    assert read(path) == []
    sink.write(LINEAGE, rows(2, 2))
    assert read(path) == rows(0, 2)
    sink.write(LINEAGE, rows(3, 3))
    assert sink.known(2) == as_one(rows(2, 3))
    sink.close()
    assert read(path) == rows(0, 3)


def test_rows_that_a_kill_left_beside_the_file_are_taken_into_it(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    sink = sink_in(path)
    sink.open(RUN_ID, LINEAGE)
    sink.write(LINEAGE, rows(0, 2))
    sink._waiting.close()  # as at a kill
    again = sink_in(path)
    assert again.open(RUN_ID, LINEAGE) == SinkPlace(3, LINEAGE)
    assert read(path) == rows(0, 2)
    again.close()


def test_other_history_replaces_the_rows_that_are_not_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    feed(sink_in(path))
    sink = sink_in(path)
    assert sink.open(RUN_ID, OTHER_LINEAGE) == SinkPlace(LAST + 1, LINEAGE)
    other = rows(0, 1) + rows(2, 4, late_s=0.5)
    assert sink.go_back(OTHER_LINEAGE, [Mark(one.next_number, one.ended_s) for one in other]) == 2
    sink.write(OTHER_LINEAGE, other[2:])
    sink.close()
    assert read(path) == other


def test_file_of_another_run_or_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    feed(sink_in(path))
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="holds the figures of run a run, not of another"):
        sink_in(path).open("another", LINEAGE)
    assert path.read_bytes() == before
    path.write_text("no parquet")
    with pytest.raises(InvalidInput, match="is no parquet file"):
        sink_in(path).open(RUN_ID, LINEAGE)
    assert path.read_text() == "no parquet"


def test_sum_of_absurd_claims_is_the_greatest_count(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    sink = sink_in(path)
    sink.open(RUN_ID, LINEAGE)
    sink.write(LINEAGE, [replace(row(0), loss_tokens=2**70)])
    sink.close()
    assert read(path)[0].loss_tokens == 2**63 - 1
    assert HistoryArrays("run", LINEAGE, 1, [replace(row(0), loss_tokens=2**70)]).loss_tokens[0] == 2**63 - 1


def test_rows_that_a_kill_left_in_both_files_are_taken_once(tmp_path: Path) -> None:
    path, waiting = tmp_path / "run.parquet", tmp_path / ".run.parquet.new-rows.csv"
    sink = sink_in(path)
    sink.open(RUN_ID, LINEAGE)
    sink.write(LINEAGE, rows(0, 2))
    left = waiting.read_bytes()
    sink.close()
    waiting.write_bytes(left)  # as before they were forgotten
    feed(sink_in(path))
    assert read(path) == rows(0, LAST)
