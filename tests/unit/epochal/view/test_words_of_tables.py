"""Every word of the tables that a newcomer sees first has a meaning."""

import io
from dataclasses import fields, replace

import pytest
from rich.console import Console

from epochal.coordinator.proof.audit import AuditReport
from epochal.coordinator.proof.backup import BackupReport
from epochal.runtime.glossary import CHECKS, STATUS
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.phase_names import RunState
from epochal.state.shown.glossary import PHASES
from epochal.state.wire import Sha256
from epochal.tools.testnet.local_run import Report
from epochal.view.check_report import print_checks
from epochal.view.status_panel import status_panel
from tests.unit.epochal.view.test_status_panel import GPU, status_of

TITLES = {"run_id", "audit", "problems", "remarks"}
"""Fields that are no row of a table, or several."""


@pytest.mark.parametrize("report", [Report, AuditReport, BackupReport])
def test_every_row_of_a_report_is_explained(report: type) -> None:
    assert {field.name for field in fields(report)} - TITLES - CHECKS.keys() == set()


def test_words_of_the_demos_panel_are_explained() -> None:
    status = status_of(1, 2.0)
    members = tuple(
        replace(status.members[0], name="lab", data_wait=0.12, part=0.5, trainer=trainer, **GPU)
        for trainer in ("numpy", "torch")
    )
    found = Evaluation("held-out", 1, 2.0, 12345, 10, Sha256("ab" * 32), recorded_s=1.7e9)
    console = Console(file=io.StringIO(), width=160)
    console.print(
        status_panel(replace(status, members=members, evaluations=(found,), gradient_norm=0.5), explains=True)
    )
    assert isinstance(console.file, io.StringIO)
    panel = console.file.getvalue()
    assert [word for word in STATUS if word not in panel] == []
    assert PHASES[status.run_state] in panel


def test_every_phase_is_explained() -> None:
    assert set(PHASES) == set(RunState)


def test_values_from_elsewhere_are_text_beside_their_meaning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_checks("What [b]happened[/b]", {"duplicates": 0, "recomputed": "[red]here"}, [])
    out = capsys.readouterr().out
    assert "batches of data that were trained on twice" in out
    assert "[red]here" in out
