"""`epochal explain`, and the messages that lead to it."""

import logging

from epochal.cli.logs import TextFormatter
from runtime.explanations import explanations
from tests.support.cli import run_main


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


def test_unknown_kind_is_answered_with_the_nearest() -> None:
    run_main("explain", "stil_waits").expect(2, "did you mean still-waits?")


def test_failed_command_says_where_its_error_is_explained() -> None:
    run_main("audit", "no-such-run").expect(2, "\nsee: epochal explain invalid-input")


def test_first_warning_of_a_kind_says_where_it_is_explained() -> None:
    shown = TextFormatter()
    lines = [shown.format(logging.makeLogRecord({"msg": "still_waits", "levelno": logging.WARNING})) for _ in "ab"]
    assert lines[0].endswith("still_waits (see: epochal explain still_waits)")
    assert lines[1].endswith("still_waits")


def test_warning_without_an_explanation_names_none() -> None:
    record = logging.makeLogRecord({"msg": "somebody_elses", "levelno": logging.WARNING})
    assert TextFormatter().format(record).endswith("somebody_elses")
