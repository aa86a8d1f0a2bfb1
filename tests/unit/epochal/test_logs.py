"""Log lines for machines and for people."""

import json
import logging
from io import StringIO

import pytest

from epochal.cli.output.client_log import log_event
from epochal.cli.output.logs import JsonFormatter, TextFormatter
from epochal.coordinator_client.session import CoordinatorLost
from epochal.state.errors import InvalidInput


def test_log_lines_hold_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(CoordinatorLost("no answer"))
    (record,) = caplog.records
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["level"], line["reason"]) == ("coordinator_lost", "info", "no answer")
    assert TextFormatter().format(record).endswith("info    coordinator_lost reason=no answer")


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
        log_event(CoordinatorLost("one\ntwo\x1b[2J"))
    assert TextFormatter().format(caplog.records[0]).endswith("coordinator_lost reason=one\\ntwo\\x1b[2J")
