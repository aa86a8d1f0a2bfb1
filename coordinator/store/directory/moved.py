"""The marks of a run directory whose run is moved elsewhere: it is not served any more, so that no run goes on twice.

```
moving-to    while the run is moved; it stays if the move is killed, and the same move may then be repeated
moved-to     once the run lies elsewhere
```
"""

from pathlib import Path

from epochal.runtime.files.durable_files import PRIVATE_MODE, replace_file, sync_folder
from epochal.state.errors import InvalidInput

MOVED_FILE = "moved-to"
MOVING_FILE = "moving-to"


def begin_move(run_dir: Path, to: str) -> bool:
    """Note durably where the run is moved to.

    Returns:
        Whether this is noted now; False if a move that was killed has left the note.

    Raises:
        InvalidInput: the run was moved already, or a move to another place has left its note.
        OSError: the note cannot be read or written.
    """
    _refuse_final(run_dir)
    left = _noted(run_dir / MOVING_FILE)
    if left is not None and left != to:
        raise _being_moved(run_dir, left)
    if left is None:
        replace_file(run_dir / MOVING_FILE, to.encode() + b"\n", mode=PRIVATE_MODE)
    return left is None


def end_move(run_dir: Path) -> None:
    """Note durably that the run lies elsewhere now. Raise `OSError` if that fails."""
    (run_dir / MOVING_FILE).rename(run_dir / MOVED_FILE)
    sync_folder(run_dir)


def undo_move(run_dir: Path) -> None:
    """Take back the note of `begin_move`, because the run was not moved. Raise `OSError` if that fails."""
    (run_dir / MOVING_FILE).unlink(missing_ok=True)
    sync_folder(run_dir)


def refuse_moved(run_dir: Path) -> None:
    """Raise `InvalidInput` if the run lies elsewhere now, or may lie there."""
    try:
        _refuse_final(run_dir)
        to = _noted(run_dir / MOVING_FILE)
    except OSError:  # the folder cannot be read, which others tell
        return
    if to is not None:
        raise _being_moved(run_dir, to)


def _refuse_final(run_dir: Path) -> None:
    to = _noted(run_dir / MOVED_FILE)
    if to is not None:
        raise InvalidInput(
            f"the run in {run_dir} was moved to {to}: serve it from there. Only if it is not there any more, delete "
            f"{run_dir / MOVED_FILE}"
        )


def _being_moved(run_dir: Path, to: str) -> InvalidInput:
    return InvalidInput(
        f"the run in {run_dir} is being moved to {to}, or was until the move was killed: if it is there, serve it from "
        f"there; else repeat that move, or delete {run_dir / MOVING_FILE}"
    )


def _noted(path: Path) -> str | None:
    """Return where a note says that the run is; None if there is none. Raise `OSError` if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
