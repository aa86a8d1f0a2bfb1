"""Log lines for machines and for people."""

import json
import logging
from io import StringIO

import pytest

from epochal.cli.output.client_log import log_event
from epochal.cli.output.logs import JsonFormatter, TextFormatter
from epochal.run_manager.events import ReplicaDistrusted
from epochal.state.errors import InvalidInput


def test_log_lines_hold_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(ReplicaDistrusted(3, "no answer"))
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["level"], line["reason"]) == ("replica_distrusted", "info", "no answer")
    assert TextFormatter().format(record).endswith("info    replica_distrusted step=3 reason=no answer")


def test_log_line_of_an_exception_holds_its_end() -> None:
    logger = logging.getLogger("epochal.test")
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    try:
        raise InvalidInput("broken")
    except InvalidInput:
        logger.exception("it_failed")
    finally:
        logger.removeHandler(handler)
    assert json.loads(stream.getvalue())["exception"].endswith("broken")


def test_log_line_for_people_is_one_line_whatever_a_client_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(ReplicaDistrusted(3, "one\ntwo\x1b[2J"))
    assert TextFormatter().format(caplog.records[0]).endswith("replica_distrusted step=3 reason=one\\ntwo\\x1b[2J")
