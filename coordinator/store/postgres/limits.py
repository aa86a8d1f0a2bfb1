"""Limits of statements, apart from the driver, so that whoever only needs them need not have it."""

STATEMENT_S = 5.0
"""Maximum time of a statement that a round waits for."""
GRACE_S = 2.0
"""Time beyond a statement's limit in which the server's answer may arrive."""
