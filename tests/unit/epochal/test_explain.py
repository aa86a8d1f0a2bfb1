"""`epochal explain`, and the messages that lead to it."""

import logging
from pathlib import Path

import pytest

from epochal.cli.output.logs import TextFormatter
from epochal.runtime.explanations import explanations
from epochal.runtime.glossary import WORDS
from tests.support.drive.cli import run_main


def test_command_explains_every_kind() -> None:
    listed = run_main("explain")
    assert listed.code == 0
    for kind in explanations():
        assert f"  {kind} " in listed.out


def test_explanation_says_cause_and_remedy() -> None:
    ran = run_main("explain", "KeyInUse")
    ran.expect(0, "key-in-use (refusals)")
    ran.expect(0, "Another process takes part in the run with the same key.")
    ran.expect(0, "What to do: End the other process")


def test_word_of_a_runs_views_is_explained() -> None:
    assert "  witness " in run_main("explain").out
    for asked in ("witness", "Witness"):
        run_main("explain", asked).expect(0, f"witness: {WORDS['witness']}")
    run_main("explain", "dataids").expect(0, "DataIds: ")


def test_misspelt_word_is_answered_with_the_nearest() -> None:
    run_main("explain", "Witnes").expect(2, "did you mean witness")


def test_unknown_kind_is_answered_with_the_nearest() -> None:
    run_main("explain", "stil_waits").expect(2, "did you mean still-waits")


def test_failed_command_says_where_its_error_is_explained() -> None:
    run_main("audit", "no-such-run").expect(2, "\nsee: epochal explain no-run-there")
    run_main("audit", "--no-such-option").expect(2, "\nsee: epochal explain invalid-input")


def test_command_that_ends_well_or_with_figures_names_no_explanation(tmp_path: Path) -> None:
    for command in (("--version",), ("audit", "-h"), ("init", str(tmp_path / "run"))):
        ran = run_main(*command)
        ran.expect(0)
        assert "epochal explain" not in ran.err


def test_wrong_input_because_of_a_more_exact_error_is_explained_as_that(tmp_path: Path) -> None:
    run_main("data", "inspect", str(tmp_path / "nowhere")).expect(2, "\nsee: epochal explain data-not-there")


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (("pause", "http://127.0.0.1:1"), "admin-token-missing"),
        (("key", "show", "nowhere.key"), "wrong-key-file"),
        (("init", "run", "--clients", "many"), "unclear-clients"),
        (("client", "http://127.0.0.1:1", "--trainer", "nope"), "unknown-trainer"),
        (("trainer-service", "--host", "0.0.0.0"), "would-be-unencrypted"),
        (("status", "http://no-such-host.invalid"), "wrong-address"),
    ],
)
def test_common_mistake_has_an_explanation_of_its_own(
    command: tuple[str, ...], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EPOCHAL_ADMIN_TOKEN", raising=False)
    run_main(*command).expect(2, f"\nsee: epochal explain {kind}\n")
    assert kind in explanations()


def test_first_warning_of_a_kind_says_where_it_is_explained() -> None:
    shown = TextFormatter()
    lines = [shown.format(logging.makeLogRecord({"msg": "still_waits", "levelno": logging.WARNING})) for _ in "ab"]
    assert lines[0].endswith("still_waits (see: epochal explain still_waits)")
    assert lines[1].endswith("still_waits")


def test_warning_without_an_explanation_names_none() -> None:
    record = logging.makeLogRecord({"msg": "somebody_elses", "levelno": logging.WARNING})
    assert TextFormatter().format(record).endswith("somebody_elses")
