"""What system errors mean, and how often strangers can provoke a log line."""

import errno
import logging

import pytest

from epochal.runtime.connections.throttled_log import LOG_PERIOD_S, RareLog
from epochal.runtime.os_errors import Obstacle, obstacle_of, reason_of


@pytest.mark.parametrize(
    ("code", "obstacle"),
    [
        *((code, Obstacle.PASSING) for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS)),
        (errno.EADDRNOTAVAIL, Obstacle.PASSING),
        *((code, Obstacle.FULL) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
        *((code, Obstacle.BROKEN) for code in (errno.EIO, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EISDIR)),
    ],
)
def test_error_is_classified(code: int, obstacle: Obstacle) -> None:
    assert obstacle_of(OSError(code, "text")) is obstacle
    assert reason_of(OSError(code, "text")) == "text"


def test_lack_of_memory_passes() -> None:
    assert obstacle_of(MemoryError()) is Obstacle.PASSING
    assert reason_of(MemoryError()) == "out of memory"


def test_event_is_logged_at_once_and_then_once_a_period(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    rare = RareLog(logging.getLogger("tests"), "happened", lambda: now_s[0])
    for _ in range(1_000):
        rare.note("first")
    now_s[0] = LOG_PERIOD_S
    rare.note("second")
    found = [(record.msg, record.__dict__["reason"], record.__dict__["count"]) for record in caplog.records]
    assert found == [("happened", "first", 1), ("happened", "second", 1_000)]
