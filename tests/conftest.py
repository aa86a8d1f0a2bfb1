"""Settings that every test shares."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

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


LONG_ONES = tuple(
    f"tests/{name}.py"
    for name in (
        "integration/test_tutorials",
        "integration/test_up",
        "integration/test_torch_run",
        "integration/test_mesh_examples",
        "integration/test_chaos",
        "contract/trainers/test_sharded_mesh",
        "contract/trainers/test_mesh_trainer",
        "contract/coordinator/test_openapi_contract",
    )
)
"""Files with tests of half a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first: at the end no worker waits for another that has just begun one."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_ONES))


@pytest.fixture(autouse=True)
def log_level_as_before() -> Iterator[None]:
    """Set the log level back that a test's commands have changed: later tests count the lines that they see."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
