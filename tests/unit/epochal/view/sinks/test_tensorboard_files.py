"""The TensorBoard sink, read back by TensorBoard."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.view.sinks.scalars import scalars_of
from epochal.view.sinks.sink import Mark, SinkPlace
from tests.support.data.figure_rows import LINEAGE, OTHER_LINEAGE, as_one, row, rows
from tests.support.heavy import need_module
from tests.support.killed_sink import LAST, RUN_ID, feed, kill_at_every_line

LOSS, STEP = "loss/train_nats_per_token", "progress/step"


@pytest.fixture(autouse=True)
def _tensorboard() -> None:
    need_module("tensorboard")


def sink_in(folder: Path) -> Any:
    from epochal.view.sinks.tensorboard_files import TensorBoardSink

    return TensorBoardSink(folder)


def points(folder: Path, tag: str = STEP) -> list[tuple[int, float, float]]:
    """Return step, time and value of what TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / RUN_ID), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    found.Reload()
    return [(one.step, one.wall_time, one.value) for one in found.Scalars(tag)]


def slow_points(folder: Path) -> list[tuple[int, float]]:
    """Return step and time of what TensorBoard shows without its data server."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / RUN_ID))
    found.Reload()
    return [(one.step, one.wall_time) for one in found.Tensors(STEP)]


def test_tensorboard_shows_each_round_at_its_number_and_time(tmp_path: Path) -> None:
    feed(sink_in(tmp_path))
    assert points(tmp_path) == [(one.number, one.ended_s, one.step) for one in rows(0, LAST)]
    assert [step for step, _, _ in points(tmp_path, LOSS)] == [1, 2, 3]
    as_single = struct.unpack("f", struct.pack("f", scalars_of(row(2))[LOSS]))[0]
    assert points(tmp_path, LOSS)[1][2] == as_single


@pytest.mark.nightly
def test_follower_killed_at_any_line_leaves_each_point_once(tmp_path: Path) -> None:
    shared = ["tensorboard.compat.proto.event_pb2", "tensorboard.compat.tensorflow_stub.pywrap_tensorflow"]
    for place in kill_at_every_line("epochal.view.sinks.tensorboard_files", "TensorBoardSink", tmp_path, 11, shared):
        assert [step for step, _, _ in points(place)] == list(range(LAST + 1)), place


@pytest.mark.parametrize("left_bytes", [1, 5, 300])
def test_record_that_a_crash_left_in_part_is_written_again(tmp_path: Path, left_bytes: int) -> None:
    feed(sink_in(tmp_path), last=2)
    (file,) = (tmp_path / RUN_ID).glob("events.out.*")
    file.write_bytes(file.read_bytes()[:-left_bytes])
    sink = sink_in(tmp_path)
    assert sink.open(RUN_ID, LINEAGE) == SinkPlace(2, LINEAGE)
    sink.close()
    feed(sink_in(tmp_path))
    assert [step for step, _, _ in points(tmp_path)] == list(range(LAST + 1))


def test_other_history_replaces_the_points_that_are_not_its_own(tmp_path: Path) -> None:
    feed(sink_in(tmp_path))
    sink = sink_in(tmp_path)
    assert sink.open(RUN_ID, OTHER_LINEAGE) == SinkPlace(LAST + 1, LINEAGE)
    other = rows(0, 1) + rows(2, 4, late_s=0.5)
    assert sink.go_back(OTHER_LINEAGE, [Mark(one.next_number, one.ended_s) for one in other]) == 2
    sink.write(OTHER_LINEAGE, other[2:])
    sink.close()
    expected = [(one.number, one.ended_s) for one in other]
    assert [(step, at_s) for step, at_s, _ in points(tmp_path)] == expected
    assert slow_points(tmp_path) == expected
    again = sink_in(tmp_path)
    assert again.open(RUN_ID, OTHER_LINEAGE) == SinkPlace(5, OTHER_LINEAGE)
    again.close()


def test_merged_rounds_are_one_point_of_means(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    assert sink.open(RUN_ID, LINEAGE) is None
    sink.write(LINEAGE, [as_one(rows(1, 4)), row(6)])
    sink.close()
    assert [(step, value) for step, _, value in points(tmp_path, "speed/tokens_per_round")] == [(4, 192), (6, 192)]


def test_run_with_the_name_of_a_folder_stays_inside(tmp_path: Path) -> None:
    for name in ("..", "a/b", "x\ny"):
        sink = sink_in(tmp_path / "logs")
        sink.open(name, LINEAGE)
        sink.close()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["%2E.", "a%2Fb", "x%0Ay"]


def test_absurd_loss_is_a_point_too(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    sink.open(RUN_ID, LINEAGE)
    sink.write(LINEAGE, [replace(row(1), loss=1e300)])
    sink.close()
    assert points(tmp_path, LOSS)[0][0] == 1
