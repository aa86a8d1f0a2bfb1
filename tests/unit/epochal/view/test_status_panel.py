"""How a run looks in a terminal."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from epochal.commands.serve.up import plain_lines
from epochal.state.intervals import BatchId
from epochal.state.messages.evaluation_reports import Benchmark, Evaluation
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.messages.requests import FailedBatches, FailedData, RunStatus
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Sha256
from epochal.view.status_panel import curve, status_line, status_panel


@pytest.mark.parametrize(
    ("values", "expected"), [([], ""), ([1.0], "▁"), ([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"), ([5.0, 5.0], "▁▁")]
)
def test_curve_spans_from_the_lowest_to_the_highest_value(values: list[float], expected: str) -> None:
    assert curve(values) == expected


def status_of(member_count: int, loss: float | None) -> RunStatus:
    member = MemberFigures(
        client_id=ClientId("ab" * 16),
        ready=True,
        in_roster=True,
        share=3,
        claim=4,
        trainer="numpy",
        silent_s=0.4,
        last_loss=loss,
        missed=0,
        rest_s=None,
        last_miss="",
    )
    return RunStatus(
        run_id="demo",
        version=7,
        run_state=RunState.ROUND_TRAIN,
        reason="all are ready",
        hold=None,
        phase_remaining_s=4.0,
        epoch=1,
        step=3,
        total_steps=2,
        attempt=0,
        member_count=member_count,
        ready_count=member_count,
        resting_count=0,
        members=(member,) * member_count,
        data_indices_applied=96,
        tokens_applied=123456,
        tokens_per_s=1000.4,
        loss=loss,
        loss_history=() if loss is None else ((1, 3.0), (2, loss)),
        carried_batches=0,
        waiting_batches=0,
        quarantined_batches=0,
        quarantined=(),
        failed_data=FailedData((), ()),
        checkpoint_step=0,
        blob_bytes=0,
        journal_bytes=0,
    )


@pytest.mark.parametrize(("member_count", "loss"), [(0, None), (1, 2.5), (40, 2.5)])
def test_status_is_shown_whatever_is_known(member_count: int, loss: float | None) -> None:
    console = Console(file=StringIO(), width=100, record=True)
    console.print(status_panel(status_of(member_count, loss), ["a note"]))
    shown = console.export_text()
    assert "RoundTrain" in shown
    assert "2 of 2" in shown, "a run that is over does not show a step beyond its last"
    assert "123,456" in shown
    assert "a note" in shown
    assert ("2.500" in shown) is (loss is not None)
    assert ("28 more" in shown) is (member_count == 40)


def test_status_shows_the_batches_that_failed_and_why() -> None:
    gone = tuple(FailedBatches(BatchId(n, n), (ClientId("ab" * 16),), f"corrupt: shard {n}\x1b") for n in range(8))
    waiting = (FailedBatches(BatchId(40, 47), (), "rejected: not JSON"),)
    status = replace(
        status_of(1, 2.5), quarantined_batches=557, waiting_batches=8, failed_data=FailedData(gone, waiting)
    )
    console = Console(file=StringIO(), width=120, record=True)
    console.print(status_panel(status))
    shown = console.export_text()
    assert "557 batches quarantined, not trained on" in shown
    assert "[2, 2]  corrupt: shard 2\\x1b" in shown
    assert "epochal quarantine list" in shown
    assert "8 batches failed, waiting for another attempt" in shown
    assert "[40, 47]  rejected: not JSON" in shown
    assert status_line(status).endswith("quarantined 557")


def test_short_names_stay_on_one_line_on_a_narrow_terminal() -> None:
    status = status_of(2, 2.5)
    named = tuple(replace(member, name=name) for member, name in zip(status.members, ("slowlink", "lab"), strict=True))
    console = Console(file=StringIO(), width=80, record=True)
    console.print(status_panel(replace(status, members=named)))
    assert "slowlink" in console.export_text()


def test_status_shows_each_evaluation_s_newest_replica() -> None:
    found = tuple(
        Evaluation(name, step, loss, 12345, 10, Sha256("ab" * 32), recorded_s=1.8e9)
        for name, step, loss in (("validation", 2, 2.25), ("test", 0, 3.5), ("validation", 1, 2.75))
    )
    status = replace(status_of(1, 2.5), evaluations=found)
    console = Console(file=StringIO(), width=120, record=True)
    console.print(status_panel(status))
    shown = [line.strip("│ ").split() for line in console.export_text().splitlines()]
    assert ["validation", "2.250", "2", "12,345", "2027-01-15", "08:00", "█▁"] in shown
    assert ["test", "3.500", "0", "12,345", "2027-01-15", "08:00"] in shown
    assert status_line(status).endswith("loss 2.500 validation 2.250 at 2")


def test_status_shows_benchmarks_apart_with_their_standard_errors() -> None:
    found = tuple(
        Evaluation("task", step, None, None, 200, Sha256("ab" * 32), 1.8e9, Benchmark(metric, value, True, error))
        for step, metric, value, error in (
            (1, "acc", 0.25, 0.03),
            (2, "acc", 0.5, 0.03125),
            (2, "acc_norm", 0.75, None),
        )
    )
    status = replace(status_of(1, 2.5), evaluations=found)
    console = Console(file=StringIO(), width=120, record=True)
    console.print(status_panel(status))
    shown = [line.strip("│ ").split() for line in console.export_text().splitlines()]
    assert ["task", "acc", "0.500", "±", "0.031", "2", "200", "2027-01-15", "08:00", "▁█"] in shown
    assert ["task", "acc_norm", "0.750", "2", "200", "2027-01-15", "08:00"] in shown
    assert not any(line[:1] == ["evaluation"] for line in shown), "no table of losses"


def test_status_shows_who_rests_and_for_what() -> None:
    status = status_of(14, None)
    resting = replace(status.members[0], missed=3, rest_s=9.6, last_miss="its result was late\x1b")
    status = replace(status, members=(*status.members[1:], resting), resting_count=1)
    for width in (80, 140):
        console = Console(file=StringIO(), width=width, record=True)
        console.print(status_panel(status))
        shown = console.export_text()
        assert "rests 10 s" in shown
        assert "3, 4 at most" in shown
        assert "missed 3 rounds, lastly because its result was late\\x1b" in " ".join(shown.split())
        assert not [line for line in shown.splitlines()[1:-1] if not line.strip(" │")], "no empty lines"
    assert "clients 14/14 resting 1 " in status_line(status)


def test_status_shows_who_trains_ahead_and_for_which_step() -> None:
    status = status_of(2, None)
    status = replace(status, members=(replace(status.members[0], ahead_step=13), *status.members[1:]))
    console = Console(file=StringIO(), width=120, record=True)
    console.print(status_panel(status))
    shown = console.export_text()
    assert shown.count("trains ahead, step 13") == 1
    assert shown.count("in round") == 1


GPU: dict[str, Any] = {
    "gpu_memory_bytes": 41_250_000_000,
    "gpu_memory_total_bytes": 80_000_000_000,
    "gpu_utilisation": 0.93,
}


def test_status_shows_the_gpus_of_those_that_have_one() -> None:
    console = Console(file=StringIO(), width=140, record=True)
    without = status_of(2, 2.5)
    members = replace(without.members[0], **GPU), without.members[1]
    console.print(status_panel(replace(without, members=members, gradient_norm=0.123456, **GPU)))
    shown = console.export_text()
    assert shown.count("93%, 41.2 of 80.0 GB") == 2, "of the run, and of the one member"
    assert "gradient norm  0.1235" in shown
    console.print(status_panel(without))
    assert "G" not in console.export_text().replace("Epochal", "")


def test_printed_status_is_one_line_however_narrow_the_console() -> None:
    console = Console(file=StringIO(), width=20)
    plain_lines(console)(status_of(2, 2.5), ["a note that is longer than the console"])
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.splitlines() == ["* a note that is longer than the console", status_line(status_of(2, 2.5))]


def test_status_line_is_one_line() -> None:
    line = status_line(status_of(2, 2.5))
    assert line == "RoundTrain epoch 1 step 2/2 done clients 2/2 tokens/s 1,000 loss 2.500"


def test_panel_shows_how_long_clients_waited_for_data() -> None:
    status = status_of(2, 2.5)
    console = Console(file=StringIO(), width=160, record=True)
    console.print(status_panel(status))
    assert "waits for data" not in console.export_text()
    waiting = replace(status.members[0], data_wait=0.124)
    console.print(status_panel(replace(status, members=(waiting, status.members[1]))))
    shown = console.export_text()
    assert "waits for data" in shown
    assert "12%" in shown


def test_status_says_what_the_run_waits_for_and_why_it_is_not_faster() -> None:
    console = Console(record=True, width=110, file=StringIO())
    waiting, explanation = "waits for results of 7f3a\x1b[31m", "61 % of the time is the upload of 7f3a."
    console.print(status_panel(replace(status_of(1, None), waiting=waiting, explanation=explanation)))
    shown = console.export_text()
    assert "The run waits for results of 7f3a\\x1b[31m, at most 4 s more." in shown
    assert "61 % of the time is the upload of 7f3a." in shown


def shown_at_80(status: RunStatus) -> str:
    console = Console(file=StringIO(), width=80, record=True)
    console.print(status_panel(status))
    return console.export_text()


def test_name_without_a_place_to_break_is_shown_whole() -> None:
    status = status_of(1, 2.5)
    shown = shown_at_80(replace(status, members=(replace(status.members[0], name="x" * 32),)))
    assert shown.count("x") == 32
