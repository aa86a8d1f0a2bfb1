"""The environment of the tests, and of the processes that they start: set before anything reads it."""

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 4 * 1024**3


def _keep_files_in_memory() -> None:
    """Let temporary files lie in memory where there is enough of it: runs are flushed to theirs thousands of times."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir():
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize >= LEAST_FREE_BYTES and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = str(MEMORY)


_keep_files_in_memory()
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # threads of libraries would spin for cores that other workers have
