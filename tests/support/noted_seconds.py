"""A plugin of pytest that writes the seconds of each file of tests to `seconds.json` (`make test-seconds`)."""

import json
from collections import defaultdict

import pytest

from tests.support.dealing import SECONDS, file_of

LEAST_S = 0.5
"""Files that take less are left out."""
_found: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add what a part of a test took."""
    _found[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the sums, in the one process that hears of all tests."""
    if not hasattr(session.config, "workerinput"):
        seconds = {file: round(taken_s, 1) for file, taken_s in sorted(_found.items()) if taken_s >= LEAST_S}
        SECONDS.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
