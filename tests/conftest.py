"""Settings that every test shares."""

from hypothesis import settings

settings.register_profile("epochal", deadline=None)  # a loaded machine is no bug; pytest's own timeout bounds a test
settings.load_profile("epochal")
