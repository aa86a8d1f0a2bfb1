"""Detects terminals on which something can be redrawn in place."""

import os
from typing import IO

DUMB = frozenset({"dumb", "unknown"})
"""Values of TERM for terminals that cannot move their cursor."""


def can_be_drawn_on(*streams: IO[str]) -> bool:
    """Return whether all of these streams are terminals that can move their cursor."""
    return os.environ.get("TERM", "").lower() not in DUMB and all(stream.isatty() for stream in streams)
