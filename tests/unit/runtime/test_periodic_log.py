"""Messages that come too often are logged at once, and then once a period with their number."""

import logging

import pytest

from runtime.periodic_log import PeriodicLog

LOG = logging.getLogger("tests.periodic")


def test_message_is_logged_at_once_and_then_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    messages = PeriodicLog(LOG, "it happened", 60.0)
    for now_s in (0.0, 1.0, 59.0, 60.0, 61.0):
        messages.happened(now_s, place="here")
    assert [(record.message, vars(record)["count"], vars(record)["place"]) for record in caplog.records] == [
        ("it happened", 1, "here"),
        ("it happened", 3, "here"),
    ]
