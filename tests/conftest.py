"""Settings that every test shares."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.support.heavy import without

settings.register_profile("epochal", deadline=None)  # a loaded machine is no bug; pytest's own timeout bounds a test
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

LONG_ONES = tuple(
    f"tests/{name}.py"
    for name in (
        "integration/test_tutorials",
        "integration/test_up",
        "integration/test_torch_run",
        "integration/test_mesh_examples",
        "integration/test_chaos",
        "integration/test_plan_holds",
        "integration/test_slow_client",
        "browser/test_live_run",
        "contract/trainers/test_sharded_mesh",
        "contract/trainers/test_mesh_trainer",
        "contract/coordinator/test_openapi_contract",
    )
)
"""Files with tests of half a minute."""


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
    """Put the long tests first: at the end no worker waits for another that has just begun one."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_ONES))


@pytest.fixture(autouse=True)
def log_level_as_before() -> Iterator[None]:
    """Set the log level back that a test's commands have changed: later tests count the lines that they see."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
