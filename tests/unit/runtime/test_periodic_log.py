"""Messages that come too often are logged at once, and then once a period with their number."""

import asyncio
import logging

import pytest

from runtime.periodic_log import ACCEPT_FAILED, PeriodicLog, log_accept_errors_rarely

LOG = logging.getLogger("tests.periodic")


def test_message_is_logged_at_once_and_then_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    messages = PeriodicLog(LOG, "it happened", 60.0)
    for now_s in (0.0, 1.0, 59.0, 60.0, 61.0):
        messages.happened(now_s, place="here")
    assert [(record.message, vars(record)["count"], vars(record)["place"]) for record in caplog.records] == [
        ("it happened", 1, "here"),
        ("it happened", 3, "here"),
    ]


async def test_accept_errors_are_logged_once_and_others_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    log_accept_errors_rarely(LOG)
    loop = asyncio.get_running_loop()
    for _ in range(1000):
        loop.call_exception_handler({"message": ACCEPT_FAILED, "exception": OSError(24, "Too many open files")})
    assert ["no descriptors" in record.message for record in caplog.records] == [True]
    loop.call_exception_handler({"message": "something else"})
    assert caplog.records[-1].message == "something else"
