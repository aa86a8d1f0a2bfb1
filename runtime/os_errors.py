"""The meaning of an `OSError` of a disk or socket for the work that met it: one classification for all programs."""

import errno
from enum import Enum

_PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EINTR}
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Obstacle(Enum):
    """The reason for which a system call fails."""

    PASSING = "passing"
    """Descriptors, memory or ports ran out: expected to pass within seconds."""
    FULL = "full"
    """The disk, a quota, or the allowed size of a file is used up: somebody has to make room."""
    BROKEN = "broken"
    """Anything else, such as a failing or read-only disk: not expected to pass."""


def obstacle_of(error: OSError | MemoryError) -> Obstacle:
    """Return what is in the way."""
    if isinstance(error, MemoryError) or error.errno in _PASSING:
        return Obstacle.PASSING
    return Obstacle.FULL if error.errno in _FULL else Obstacle.BROKEN


def reason_of(error: OSError | MemoryError) -> str:
    """Return the system's words for the error, such as "No space left on device"."""
    return str(getattr(error, "strerror", None) or error) or "out of memory"
