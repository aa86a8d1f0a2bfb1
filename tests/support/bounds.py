"""How long a test waits for something that comes: so long that a busy machine fails no test.

A bound costs nothing where the thing comes, so one is enough; a test whose subject is a time limit names its own.
"""

BOUND_S = 120.0
"""Maximum seconds of a single wait; on an idle machine each takes well under a second, but for imports of torch."""
TEST_BOUND_S = 600.0
"""Maximum seconds of a test, of which several may wait: `timeout` in pyproject.toml."""
