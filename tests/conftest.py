"""Settings that every test shares."""

import gc
import logging
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from epochal.runtime.garbage import no_collections
from tests.support.dealing import UnitScheduling, file_of, longest_first, noted_seconds
from tests.support.heavy import without
from tests.support.servers.postgres_server import database_server

__all__ = ["database_server"]

settings.register_profile("nightly", deadline=None)  # a loaded machine is no bug; pytest's own timeout bounds a test
settings.register_profile("ci", settings.get_profile("nightly"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped, a line for each reason with its number: a missing package skips many tests."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"SKIPPED [{count}] {reason.removeprefix('Skipped: ')}")


OF_EXTRAS = frozenset({"obstore", "psycopg", "pyarrow"})
"""Packages that modules of tests import as they are collected; tests ask for others (`tests/support/heavy.py`)."""

MOST_MORE_WORKERS = 4
"""Maximum number of workers beyond one for each core."""


class _ModuleOfTests(pytest.Module):
    """A module of tests, which skips (or fails, in CI) where it imports a package of an extra that is not installed."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()  # type: ignore[no-untyped-call]
        except self.CollectError as error:
            cause = error.__cause__
            if isinstance(cause, ModuleNotFoundError) and (cause.name or "").partition(".")[0] in OF_EXTRAS:
                without(f"the package {cause.name} is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collect each module so."""
    module: pytest.Module = _ModuleOfTests.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without a search for cycles, and leave what they have imported out of all later ones."""
    with no_collections():
        collected = yield
    gc.freeze()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests as workers are to have them (`tests/support/dealing.py`); one process alone keeps their order."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        files = [file_of(item.nodeid) for item in items]
        places = {file: place for place, file in enumerate(longest_first([*dict.fromkeys(files)], noted_seconds()))}
        items.sort(key=lambda item: places[file_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> UnitScheduling:
    """Return what gives tests to workers."""
    return UnitScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return more workers than cores for `-n auto`: each waits for a third of its time, for timers and processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # pytest-xdist reads it
    cores = os.cpu_count() or 1
    return cores + min(cores, MOST_MORE_WORKERS)


@pytest.fixture(autouse=True)
def log_level_as_before() -> Iterator[None]:
    """Set the log level back that a test's commands have changed: later tests count the lines that they see."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
