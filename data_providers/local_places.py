"""Errors of places on this machine that cannot be opened: a mistyped path, or a disk that does not answer."""

import errno
import os
from pathlib import Path

from data_providers.protocol import Rejected, SourceUnavailable

MISTAKEN_PLACES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of the system that no waiting ends: the path is wrong, or this user may not read there."""


def cannot_open(path: Path, error: OSError) -> Rejected | SourceUnavailable:
    """Return the error for files that cannot be opened; `Rejected` if the same path can only fail again."""
    reason = str(error) if error.errno is None else os.strerror(error.errno)
    message = f"{path.absolute()} cannot be read: {reason}"
    if error.errno in MISTAKEN_PLACES:
        return Rejected(f"{message}; check the path, or name the data with --data", path=str(path))
    return SourceUnavailable(message, path=str(path))
