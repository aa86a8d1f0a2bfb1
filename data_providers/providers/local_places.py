"""Places on this machine: the files below a folder, and the errors of what cannot be opened."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from epochal.data_providers.file_names import is_hidden
from epochal.data_providers.formats.megatron import INDEX_SUFFIX
from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.runtime.permissions import Permissions

MAX_FILES_BELOW = 1_000_000
"""Maximum number of files below a folder of data."""

MISTAKEN_PLACES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of the system that no waiting ends: the path is wrong, or this user may not read there."""


class DataNotThere(Rejected):
    """There are no data at a path of this machine, or this user may not read them. Do not retry."""


def cannot_open(path: Path, error: OSError) -> DataNotThere | SourceUnavailable:
    """Return the error for files that cannot be opened; `DataNotThere` if the same path can only fail again."""
    reason = str(error) if error.errno is None else os.strerror(error.errno)
    message = f"{path.absolute()} cannot be read: {reason}"
    if error.errno in MISTAKEN_PLACES:
        advice = "check the path; a client whose copy is elsewhere names it with --data"
        return DataNotThere(f"{message}; {advice}", path=str(path))
    return SourceUnavailable(message, path=str(path))


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files in a folder and those below it, hidden ones left out, each with its name relative to the folder.

    Raises:
        Rejected: there are more than `MAX_FILES_BELOW`.
        OSError: the folder cannot be read.
    """
    os.listdir(folder)  # `rglob` passes over a folder that cannot be read
    count = 0
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not is_hidden(name) and path.is_file():
            count += 1
            if count > MAX_FILES_BELOW:
                raise Rejected(f"{folder} holds more than {MAX_FILES_BELOW} files", path=str(folder))
            yield name, path


def allowed_path(path: Path, permissions: Permissions) -> Path:
    """Return a path that a document names, below the folders that the owner allowed. Blocks.

    Raises:
        NotAllowed: it is elsewhere, or holds a file that is a link to elsewhere; or its index or manifest is one.
        Rejected, SourceUnavailable: its files cannot be listed.
    """
    if permissions.folders is None:
        return path
    found = permissions.checked_path(path)
    try:
        beside = (found.with_suffix(INDEX_SUFFIX), found.with_name(MANIFEST_NAME))
        for file in (file for _, file in files_below(found)) if found.is_dir() else beside:
            if file.is_symlink():
                permissions.checked_path(file)
    except OSError as error:
        raise cannot_open(found, error) from error
    return found
