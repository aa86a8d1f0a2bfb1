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


@pytest.fixture(autouse=True)
def log_level_as_before() -> Iterator[None]:
    """Set the log level back that a test's commands have changed: later tests count the lines that they see."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
