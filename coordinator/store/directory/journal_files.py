"""The files of a run directory's journal: their names, and where they are."""

from pathlib import Path

JOURNAL_FOLDER = "journal"
HISTORY_FILE = f"{JOURNAL_FOLDER}/history.kept"
"""The place of the run's history in its run directory: derived from the journal, and made again if it is not there."""


def segment_paths(run_dir: Path) -> list[Path]:
    """Return the segment files of a run directory, oldest first."""
    return sorted((run_dir / JOURNAL_FOLDER).glob("[0-9]*.log"))


def proof_paths(run_dir: Path) -> list[Path]:
    """Return the proofs of a run directory's journal, the one of the fewest segments first."""
    return sorted((run_dir / JOURNAL_FOLDER).glob("[0-9]*.proof"))


def proof_file(segment_count: int) -> str:
    """Return the place of the proof of so many segments in its run directory."""
    return f"{JOURNAL_FOLDER}/{segment_count:08d}.proof"


def segment_file(number: int) -> str:
    """Return the place of a segment file in its run directory."""
    return f"{JOURNAL_FOLDER}/{number:08d}.log"


def path_of(run_dir: Path, number: int) -> Path:
    """Return the file of a segment."""
    return run_dir / segment_file(number)


def number_of(path: Path) -> int:
    """Return the number in the name of a segment or proof."""
    return int(path.stem)


def read_if_there(path: Path) -> bytes | None:
    """Return the bytes of a file, or None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
