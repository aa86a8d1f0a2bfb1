"""A plugin of pytest that writes what a process has counted when its tests end (`make coverage`).

Workers have ten seconds to end, after which they are killed; with counts of a whole run to write they need longer, and
a worker that is killed has counted nothing.
"""

import coverage
import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Write what this process has counted so far."""
    current = coverage.Coverage.current()
    assert current is not None, "only under `coverage run`"
    current.save()
