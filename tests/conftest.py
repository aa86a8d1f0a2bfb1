"""Settings that every test shares."""

import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.support.heavy import without

settings.register_profile("nightly", deadline=None)  # a loaded machine is no bug; pytest's own timeout bounds a test
settings.register_profile("epochal", settings.get_profile("nightly"), max_examples=30)
settings.register_profile(
    "mutation",
    settings.get_profile("epochal"),
    max_examples=25,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
"""Few examples, the same ones each time, and none made smaller: whether a test fails is all that matters."""
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "epochal"))


OF_EXTRAS = frozenset({"obstore", "psycopg", "pyarrow"})
"""Packages that modules of tests import as they are collected; tests ask for others (`tests/support/heavy.py`)."""

MOST_MORE_WORKERS = 4
"""Maximum number of workers beyond one for each core."""

LONG_ONES = tuple(
    f"tests/{name}"
    for name in (
        "integration/test_torch_run.py",
        "contract/trainers/test_sharded_mesh.py",
        "integration/test_tutorials.py::test_first_model",
        "simulation/test_run_under_faults.py::test_run_of_hundreds",
        "simulation/test_adversaries.py",
        "integration/test_mesh_examples.py",
        "integration/test_tutorials.py::test_fine_tuning",
        "contract/coordinator/test_openapi_contract.py",
        "contract/trainers/test_mesh_trainer.py",
        "integration/test_tutorials.py::test_operating",
        "integration/test_up.py",
        "browser/test_live_run.py",
        "integration/test_slow_client.py",
        "integration/test_tutorials.py",
        "integration/test_chaos.py",
        "integration/test_plan_holds.py",
        "hostile/test_data_server_slow_readers.py",
        "simulation/test_three_replicas.py::test_run_of_hundreds",
    )
)
"""How the names of tests of half a minute, and of files with such tests, begin; the longest first."""


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each worker some of the long tests first: at the end none waits for another that has just begun one.

    With `--dist worksteal` each begins with as many tests of the list as the others, and takes from their ends later.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    places = {item: next((n for n, name in enumerate(LONG_ONES) if item.nodeid.startswith(name)), -1) for item in items}
    long = sorted((item for item in items if places[item] >= 0), key=lambda item: places[item])
    others, dealt = iter([item for item in items if places[item] < 0]), list[pytest.Item]()
    for worker in range(workers):
        own = [item for item in long if places[item] % workers == worker]
        size = (len(items) - len(dealt)) // (workers - worker)
        dealt += [*own, *islice(others, max(0, size - len(own)))]
    items[:] = [*dealt, *others]


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
