"""How long a test waits for something that comes: so long that a busy machine fails no test.

A bound costs nothing where the thing comes, so one is enough; a test whose subject is a time limit names its own.
"""

BOUND_S = 200.0
"""Maximum seconds of a single wait; on an idle machine each takes well under a second, but for imports of torch."""
