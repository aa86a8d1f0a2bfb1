"""The CSV sink: what it holds after kills, torn lines, another history; and what it refuses."""

import csv
import resource
from pathlib import Path

import pytest

from epochal.state.errors import InvalidInput
from epochal.state.messages.history_rows import RoundFigures, merged, without
from epochal.view.sinks.csv_file import COLUMNS, CsvSink
from epochal.view.sinks.sink import Mark, SinkFailed, SinkPlace
from tests.support.data.figure_rows import LINEAGE, OTHER_LINEAGE, as_one, row, rows
from tests.support.killed_sink import LAST, RUN_ID, feed, kill_at_every_line


def read(path: Path) -> list[RoundFigures]:
    sink = CsvSink(path)
    return [found for _, found in sink.rows()]


def marks(found: list[RoundFigures]) -> list[Mark]:
    return [Mark(one.next_number, one.ended_s) for one in found]


def test_rows_are_kept_as_they_are_and_others_read_them(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    feed(CsvSink(path))
    assert read(path) == rows(0, LAST)
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == COLUMNS
    assert [(one["run_id"], one["lineage"], one["number"]) for one in found[:2]] == [
        (RUN_ID, LINEAGE, "0"),
        (RUN_ID, LINEAGE, "1"),
    ]
    assert (found[0]["loss"], float(found[1]["loss"])) == ("", 2.0)


@pytest.mark.nightly
def test_follower_killed_at_any_line_leaves_each_row_once(tmp_path: Path) -> None:
    for path in kill_at_every_line("epochal.view.sinks.csv_file", "CsvSink", tmp_path, stride=2):
        assert read(path) == rows(0, LAST), path


@pytest.mark.parametrize("left_bytes", [1, 2, 100])
def test_row_that_a_crash_left_in_part_is_cut(tmp_path: Path, left_bytes: int) -> None:
    path = tmp_path / "run.csv"
    feed(CsvSink(path), last=2)
    path.write_bytes(path.read_bytes()[:-left_bytes])
    sink = CsvSink(path)
    assert sink.open(RUN_ID, LINEAGE) == SinkPlace(2, LINEAGE)
    sink.close()
    feed(CsvSink(path))
    assert read(path) == rows(0, LAST)


@pytest.mark.parametrize("content", ["", "run_id,line"])
def test_header_that_a_crash_left_in_part_is_written_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(content)
    feed(CsvSink(path))
    assert read(path) == rows(0, LAST)


def test_other_history_replaces_the_rows_that_are_not_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    sink = CsvSink(path)
    feed(sink)
    assert sink.open(RUN_ID, OTHER_LINEAGE) == SinkPlace(LAST + 1, LINEAGE)
    other = rows(0, 1) + rows(2, 4, late_s=0.5)
    assert sink.go_back(OTHER_LINEAGE, marks(other)) == 2
    sink.write(OTHER_LINEAGE, other[2:])
    sink.close()
    assert read(path) == other
    assert sink.open(RUN_ID, OTHER_LINEAGE) == SinkPlace(5, OTHER_LINEAGE)
    sink.close()


def test_history_with_nothing_in_common_begins_where_the_file_did(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "run.csv")
    assert sink.open(RUN_ID, LINEAGE) is None
    sink.write(LINEAGE, rows(2, 5))
    assert sink.go_back(OTHER_LINEAGE, marks(rows(0, 3, late_s=1))) == 2
    sink.close()
    assert read(tmp_path / "run.csv") == []


def test_rest_of_a_merged_row_is_what_the_file_lacks(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "run.csv")
    feed(sink, last=6)
    assert sink.open(RUN_ID, LINEAGE) == SinkPlace(7, LINEAGE)
    known = sink.known(4)
    sink.close()
    assert known == as_one(rows(4, 6))
    whole = as_one(rows(4, 9))
    rest = without(whole, known)
    assert (rest.number, rest.rounds, rest.tokens, rest.started_s) == (7, 3, 576, row(6).ended_s)
    again = merged(known, rest)
    assert (again.tokens, again.result_bytes, again.next_number) == (whole.tokens, whole.result_bytes, 10)
    assert again.loss == pytest.approx(whole.loss)


def test_second_follower_of_a_file_is_refused(tmp_path: Path) -> None:
    first, second = CsvSink(tmp_path / "run.csv"), CsvSink(tmp_path / "run.csv")
    first.open(RUN_ID, LINEAGE)
    with pytest.raises(InvalidInput, match=r"run\.csv is written by another"):
        second.open(RUN_ID, LINEAGE)
    first.close()
    second.open(RUN_ID, LINEAGE)
    second.close()


def test_file_of_another_run_or_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    feed(CsvSink(path))
    sink = CsvSink(path)
    with pytest.raises(InvalidInput, match=r"holds the figures of run a run, not of b\\nrun"):
        sink.open("b\nrun", LINEAGE)
    sink.close()
    assert read(path) == rows(0, LAST)
    path.write_text("my,own,table\n1,2,3")
    with pytest.raises(InvalidInput, match="its first line is not run_id,lineage,number"):
        CsvSink(path).open(RUN_ID, LINEAGE)
    assert path.read_text() == "my,own,table\n1,2,3"


def test_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    feed(CsvSink(path), last=1)
    sink = CsvSink(path)
    sink.open(RUN_ID, LINEAGE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        with pytest.raises(SinkFailed, match="cannot be written: File too large"):
            sink.write(LINEAGE, rows(2, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read(path) == rows(0, 1)
    sink.write(LINEAGE, rows(2, 2))
    sink.close()
    assert read(path) == rows(0, 2)
