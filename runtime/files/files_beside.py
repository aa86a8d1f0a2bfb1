"""Files that a process keeps beside its spool, and that count with it: they may outlive it, and lie on another disk."""

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FilesBeside:
    """Files beside a spool. Sizes are in bytes.

    Attributes:
        folder: where they are.
        purpose: says what they are.
        needed_bytes: the most that they take together.
        held_bytes: what they take on the disk now.
    """

    folder: Path
    purpose: str
    needed_bytes: int
    held_bytes: int

    @property
    def in_words(self) -> str:
        """Their size and purpose."""
        return f"{self.needed_bytes} bytes for {self.purpose}"

    def room(self, spool: Path) -> tuple[int, str | None]:
        """Return the room that they still need on the disk of the spool, and what their own disk lacks, if anything.

        Raises:
            OSError: a folder cannot be inspected.
        """
        missing_bytes = max(0, self.needed_bytes - self.held_bytes)
        if self.folder.stat().st_dev == spool.stat().st_dev:
            return missing_bytes, None
        free_bytes = shutil.disk_usage(self.folder).free
        lacks = f"the disk of {self.folder} has {free_bytes} for {missing_bytes} of the latter"
        return 0, lacks if missing_bytes > free_bytes else None
