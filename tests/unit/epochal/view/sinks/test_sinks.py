"""The sinks: each keeps every row over kills, and knows where it had got to."""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.errors import InvalidInput
from epochal.state.messages.evaluation_reports import Benchmark, Evaluation
from epochal.state.wire import Sha256
from epochal.view.sinks.followers import JsonLinesSink, TensorBoardSink
from epochal.view.sinks.sink import FigureSink, SinkFailed, scalars_of, with_evaluations
from tests.support.bounds import BOUND_S
from tests.support.data.figure_rows import LINEAGE, OTHER_LINEAGE, as_one, row, rows
from tests.support.heavy import need_module

RUN_ID = "a run"
STEP = "progress/step"
LAST = 3
FEED = """
import sys
from pathlib import Path
from epochal.view.sinks.followers import {maker}
from tests.support.data.figure_rows import LINEAGE, rows
sink = {maker}({place})
first = sink.open("a run", LINEAGE)
for number in range(first, int(sys.argv[1])):
    sink.write(rows(number, number))
    print(number, flush=True)
sink.close()
"""
"""A program that writes the rounds that a sink lacks, and prints the number of each that is kept."""
MANY = 1_000_000


def json_lines(folder: Path) -> FigureSink:
    return JsonLinesSink(folder / "run.jsonl")


def tensorboard(folder: Path) -> FigureSink:
    need_module("tensorboard")
    return TensorBoardSink(folder)


def numbers_in_lines(folder: Path) -> list[int]:
    return [json.loads(line)["number"] for line in (folder / "run.jsonl").read_text().splitlines()]


def numbers_in_tensorboard(folder: Path, lineage: str = LINEAGE, tag: str = STEP) -> list[int]:
    return [step for step, _ in points(folder, lineage, tag)]


def points(folder: Path, lineage: str = LINEAGE, tag: str = STEP) -> list[tuple[int, float]]:
    """Return step and value of what TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / f"a-run-{lineage[:12]}"), size_guidance={"scalars": 0})
    found.Reload()
    return [(one.step, one.value) for one in found.Scalars(tag)]


MAKERS = pytest.mark.parametrize("make", [json_lines, tensorboard])
Make = Callable[[Path], FigureSink]


def feed(sink: FigureSink, last: int = LAST, lineage: str = LINEAGE) -> int:
    """Write the rounds that the sink lacks; return the first one's number."""
    first = sink.open(RUN_ID, lineage)
    sink.write(rows(first, last))
    sink.close()
    return first


@MAKERS
def test_sink_continues_after_what_it_has_kept(tmp_path: Path, make: Make) -> None:
    assert feed(make(tmp_path), 1) == 0
    assert feed(make(tmp_path), 3) == 2


@MAKERS
def test_history_of_another_lineage_begins_anew(tmp_path: Path, make: Make) -> None:
    feed(make(tmp_path))
    assert feed(make(tmp_path), 1, OTHER_LINEAGE) == 0
    assert feed(make(tmp_path), 2, OTHER_LINEAGE) == 2


def kill_after(count: int, program: str, environment: dict[str, str] | None = None) -> None:
    """Run a program that feeds a sink, and kill it once it has kept so many rows."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(MANY)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    with process.stdout:
        for _ in range(count):
            assert process.stdout.readline(), "it ended"
        process.send_signal(signal.SIGKILL)
    assert process.wait(BOUND_S) == -signal.SIGKILL


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("maker", "place", "numbers"),
    [
        ("JsonLinesSink", "Path({!r}) / 'run.jsonl'", numbers_in_lines),
        ("TensorBoardSink", "Path({!r})", numbers_in_tensorboard),
    ],
)
def test_follower_killed_again_and_again_loses_no_row(
    tmp_path: Path, maker: str, place: str, numbers: Callable[[Path], Sequence[int]]
) -> None:
    if maker == "TensorBoardSink":
        need_module("tensorboard")
    program = FEED.format(maker=maker, place=place.format(str(tmp_path)))
    for count in (1, 7, 20):
        kill_after(count, program)
    found = list(numbers(tmp_path))
    assert sorted(set(found)) == list(range(max(found) + 1))
    assert len(found) >= 28


@pytest.mark.parametrize("left_bytes", [1, 5, 300])
def test_line_that_a_crash_left_in_part_is_written_again(tmp_path: Path, left_bytes: int) -> None:
    path = tmp_path / "run.jsonl"
    feed(JsonLinesSink(path), 2)
    path.write_bytes(path.read_bytes()[:-left_bytes])
    assert feed(JsonLinesSink(path)) == 2
    assert numbers_in_lines(tmp_path) == [0, 1, 2, 3]


def test_line_is_a_round_with_the_run_and_its_lineage(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    feed(JsonLinesSink(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"run_id": RUN_ID, "lineage": LINEAGE} | asdict(one) for one in rows(0, LAST)]


@pytest.mark.parametrize("text", ["my own notes\nand more", "one line", '{"number": 1}\n', "1\n"])
def test_file_of_another_program_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="is no round of a run; name another"):
        JsonLinesSink(path).open(RUN_ID, LINEAGE)
    assert path.read_text() == text


def test_file_of_another_run_is_refused(tmp_path: Path) -> None:
    feed(json_lines(tmp_path))
    with pytest.raises(InvalidInput, match="holds the figures of run 'a run', not of 'another'"):
        json_lines(tmp_path).open("another", LINEAGE)


def test_full_disk_is_said_and_loses_no_row(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    feed(JsonLinesSink(path), 1)
    sink = JsonLinesSink(path)
    sink.open(RUN_ID, LINEAGE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        with pytest.raises(SinkFailed, match="cannot be written: File too large"):
            sink.write(rows(2, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    sink.close()
    assert feed(JsonLinesSink(path), 2) == 2
    assert numbers_in_lines(tmp_path) == [0, 1, 2]


def test_tensorboard_shows_each_round_at_its_number(tmp_path: Path) -> None:
    feed(tensorboard(tmp_path))
    assert points(tmp_path) == [(one.number, one.step) for one in rows(0, LAST)]
    assert numbers_in_tensorboard(tmp_path, tag="loss/train_nats_per_token") == [1, 2, 3]


def test_round_without_a_gradient_norm_has_no_point_of_it(tmp_path: Path) -> None:
    feed(tensorboard(tmp_path))
    assert numbers_in_tensorboard(tmp_path, tag="gradient/norm") == [1, 2, 3]
    assert points(tmp_path, tag="gradient/norm")[0] == (1, 1.5)


def test_merged_rounds_are_one_point_of_means(tmp_path: Path) -> None:
    sink = tensorboard(tmp_path)
    sink.open(RUN_ID, LINEAGE)
    sink.write([as_one(rows(1, 4)), row(6)])
    sink.close()
    assert points(tmp_path, tag="speed/tokens_per_round") == [(4, 192), (6, 192)]


def test_run_with_the_name_of_a_folder_stays_inside(tmp_path: Path) -> None:
    sink = tensorboard(tmp_path / "logs")
    sink.open("../x\ny", LINEAGE)
    sink.close()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [f"x-y-{LINEAGE[:12]}"]


def evaluated(recorded_s: float, benchmark: Benchmark | None = None, name: str = "validation") -> Evaluation:
    loss = (2.5, 640) if benchmark is None else (None, None)
    return Evaluation(name, 3, loss[0], loss[1], 10, Sha256("ab" * 32), recorded_s, benchmark)


FIGURES = [
    evaluated(1.0),
    evaluated(2.0, Benchmark("acc", 0.5, True, 0.01), "task"),
    evaluated(3.0, Benchmark("mcc", -0.25), "task"),
]


def test_evaluations_are_scalars_with_step_samples_and_error() -> None:
    found = scalars_of(row(1), FIGURES)
    assert {name: value for name, value in found.items() if name.startswith("evaluation/")} == {
        **{"evaluation/validation/loss": 2.5, "evaluation/validation/loss_step": 3.0},
        **{"evaluation/validation/loss_samples": 10.0, "evaluation/task/acc": 0.5, "evaluation/task/acc_step": 3.0},
        **{"evaluation/task/acc_samples": 10.0, "evaluation/task/acc_stderr": 0.01, "evaluation/task/mcc": -0.25},
        **{"evaluation/task/mcc_step": 3.0, "evaluation/task/mcc_samples": 10.0},
    }


def test_evaluations_are_with_the_last_of_the_rows(tmp_path: Path) -> None:
    for sink in (json_lines(tmp_path), tensorboard(tmp_path)):
        sink.open(RUN_ID, LINEAGE)
        sink.write(rows(0, 2), FIGURES)
        sink.write(rows(2, 2), FIGURES[:1])  # again, with what came after it
        sink.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [len(line.get("evaluations", ())) for line in lines] == [0, 0, 3, 1]
    assert lines[2]["evaluations"][1]["benchmark"]["stderr"] == 0.01
    assert points(tmp_path, tag="evaluation/task/acc") == [(2, 0.5)]
    assert feed(json_lines(tmp_path)) == 3


@given(st.lists(st.floats(-20, 60)), st.sets(st.integers(1, 5)), st.integers(-1, 4))
def test_each_evaluation_is_with_the_first_round_that_ends_after_it(
    offsets: list[float], cuts: set[int], has: int
) -> None:
    all_rows, begun_s = rows(0, 5), row(0).ended_s
    since_s = all_rows[has].ended_s if has >= 0 else 0.0
    evaluations = [evaluated(begun_s + offset) for offset in offsets]
    placed: list[tuple[int, float]] = []
    ends = [*sorted(cut for cut in cuts if cut > has + 1), 6]
    for first, end in zip([has + 1, *ends], ends, strict=False):  # in pages
        for group, found in with_evaluations(all_rows[first:end], evaluations, since_s):
            placed += [(group[-1].number, one.recorded_s) for one in found]
        since_s = all_rows[end - 1].ended_s
    expected = [
        (next(one.number for one in all_rows if at_s <= one.ended_s), at_s)
        for at_s in (one.recorded_s for one in evaluations)
        if (all_rows[has].ended_s if has >= 0 else 0.0) < at_s <= all_rows[-1].ended_s
    ]
    assert sorted(placed) == sorted(expected)


def logged_by_wandb(file: Path) -> set[int]:
    """Return the steps in a log of W&B, whose records are LevelDB's (its `doc/log_format.md`) behind seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, found = file.read_bytes(), 7, b"", set[int]()
    while place + 7 <= len(data):
        left = 32_768 - place % 32_768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, parts = Record.FromString(parts), b""
            if record.HasField("history"):
                found.add(record.history.step.num)
    return found


@pytest.mark.nightly
def test_wandb_killed_and_started_again_loses_no_row(tmp_path: Path) -> None:
    need_module("wandb")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    program = FEED.format(maker="WandbSink", place="'project'")
    kill_after(3, program, environment)
    subprocess.run([sys.executable, "-c", program, "6"], env=environment, check=True, timeout=BOUND_S)
    files = [file for file in tmp_path.glob("wandb/offline-run-*/*.wandb") if file.stat().st_size > 7]
    assert set[int]().union(*map(logged_by_wandb, files)) == set(range(6))
