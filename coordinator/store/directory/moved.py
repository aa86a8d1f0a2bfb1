"""The mark of a run directory whose run lies elsewhere now: it is not served any more, so that no run goes on twice."""

from pathlib import Path

from runtime.durable_files import PRIVATE_MODE, replace_file, sync_folder
from state.errors import InvalidInput

MOVED_FILE = "moved-to"


def mark_moved(run_dir: Path, to: str) -> None:
    """Note durably where the run is. Raise `OSError` if that fails."""
    replace_file(run_dir / MOVED_FILE, to.encode() + b"\n", mode=PRIVATE_MODE)


def unmark_moved(run_dir: Path) -> None:
    """Take the note back, because the run was not moved. Raise `OSError` if that fails."""
    (run_dir / MOVED_FILE).unlink(missing_ok=True)
    sync_folder(run_dir)


def refuse_moved(run_dir: Path) -> None:
    """Raise `InvalidInput` if the run lies elsewhere now."""
    try:
        to = (run_dir / MOVED_FILE).read_text(errors="replace").strip()
    except OSError:  # there is none, or the folder cannot be read, which others tell
        return
    raise InvalidInput(
        f"the run in {run_dir} was moved to {to}: serve it from there. Only if it is not there any more, delete "
        f"{run_dir / MOVED_FILE}"
    )
