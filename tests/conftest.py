"""Settings that every test shares."""

import os

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
