"""A disk that records what was made durable."""

import os
from pathlib import Path

from runtime.durable_files import Disk


class RecordingDisk:
    """Gives a `Disk` and records what it syncs."""

    def __init__(self) -> None:
        self._synced: set[tuple[int, int]] = set()
        self.disk = Disk(sync=self._sync)

    def _sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._synced.add((found.st_dev, found.st_ino))
        os.fsync(descriptor)

    def lacks(self, *paths: Path) -> list[Path]:
        """Return those of these files and folders that a power failure may take."""
        return [path for path in paths if (path.stat().st_dev, path.stat().st_ino) not in self._synced]
