"""A disk that is full for this process: no file grows beyond some length."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.coordinator.store.files.folder import DATABASE_FILE


@contextmanager
def full_disk(run_dir: Path) -> Iterator[None]:
    """Let no file of this process grow beyond the length of a run's write-ahead log, and some bytes."""
    length = (run_dir / f"{DATABASE_FILE}-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length + 100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
