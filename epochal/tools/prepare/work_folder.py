"""The folder in which a preparation is under way: `.preparing` in the folder that it writes, locked by one process."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from epochal.runtime.os_errors import reason_of
from epochal.state.errors import InvalidInput
from epochal.tools.prepare.prepare_options import differences
from epochal.tools.prepare.publishing import TRAIN, published

WORKING = ".preparing"
ALWAYS_ALLOWED = frozenset({"tokenizer", "runs", "state.toml", "data.toml", "validation.toml"})
"""Files that a person may have in the folder before, or that were written beside it."""


@contextlib.contextmanager
def working_folder(folder: Path, content: dict[str, Any]) -> Iterator[Path | None]:
    """Yield the folder of the unfinished preparation, locked; None if the same one is complete.

    Raises:
        InvalidInput: the folder holds something else, or another process prepares it.
    """
    working = folder / WORKING
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / TRAIN).exists():  # it is put into place last
            if changed := changes(published(folder).content, content):
                raise InvalidInput(
                    f"{folder} holds a preparation with other options: {'; '.join(changed)}. Name another folder",
                    path=str(folder),
                )
            shutil.rmtree(working, ignore_errors=True)
            yield None
            return
        if not working.exists():
            foreign = sorted({path.name for path in folder.iterdir()} - ALWAYS_ALLOWED)
            if foreign:
                raise InvalidInput(f"{folder} is not empty: it holds {foreign[0]}; name a new folder", path=str(folder))
        working.mkdir(exist_ok=True)
    except OSError as error:
        named = error.filename or folder
        allowed = "allowed: a folder that is new, empty, or of the same preparation"
        raise InvalidInput(f"{named} cannot be used: {reason_of(error)}; {allowed}", path=str(named)) from error
    with locked(folder, working):
        yield working


def discard_unfinished(out: Path) -> None:
    """Remove what an unfinished preparation left in its folder.

    Raises:
        InvalidInput: it is under way in another process, or cannot be removed.
    """
    working = out / WORKING
    try:
        if working.exists():
            with locked(out, working):
                shutil.rmtree(working)
    except OSError as error:
        named = error.filename or working
        raise InvalidInput(f"{named} cannot be removed: {reason_of(error)}", path=str(named)) from error


@contextlib.contextmanager
def locked(folder: Path, working: Path) -> Iterator[None]:
    """Hold the lock of a working folder. Raise `InvalidInput` if another process holds it."""
    try:
        lock = (working / "lock").open("ab")
    except OSError as error:
        raise InvalidInput(f"{working} cannot be used: {reason_of(error)}", path=str(working)) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInput(f"{folder} is being prepared by another process", path=str(folder)) from error
        yield


def other_options(changed: Sequence[str]) -> str:
    """Return the message on an unfinished preparation that these options do not continue."""
    return (
        f"an unfinished preparation in this folder has other options: {'; '.join(changed)}. "
        "--restart discards it and starts over"
    )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words the options by which a preparation is no longer the earlier one: not those that allow more."""
    # nothing was bad before, so no byte depends on what is now skipped
    return differences({**before, "skip_bad": before["skip_bad"] or now["skip_bad"]}, now)
