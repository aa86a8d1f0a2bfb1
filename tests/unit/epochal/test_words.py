"""Every word of the tables that a newcomer sees first has a meaning."""

from dataclasses import fields

import pytest

from coordinator.audit import AuditReport
from coordinator.backup import BackupReport
from epochal.cli.checks import print_checks
from epochal.testnet.report import Report
from epochal.words import CHECKS
from runtime.run_words import PHASES
from state.phases import RunState

TITLES = {"run_id", "problems", "remarks"}
"""Fields that are no row of a table."""


@pytest.mark.parametrize("report", [Report, AuditReport, BackupReport])
def test_every_row_of_a_report_is_explained(report: type) -> None:
    assert {field.name for field in fields(report)} - TITLES - CHECKS.keys() == set()


def test_every_phase_is_explained() -> None:
    assert set(PHASES) == set(RunState)


def test_values_from_elsewhere_are_text_beside_their_meaning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_checks("What [b]happened[/b]", {"duplicates": 0, "exported_to": "[red]here"}, [])
    out = capsys.readouterr().out
    assert "batches of data that were trained on twice" in out
    assert "[red]here" in out
