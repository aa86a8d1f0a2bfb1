"""The project's figures, each beside a bare baseline in one run. `make bench` prints them; nothing is a timed test."""

import os
import tempfile

# What a user has: files on the disk, and libraries with all cores, whatever the tests whose parts are used here choose.
os.environ.setdefault("TMPDIR", tempfile.gettempdir())
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, str(os.cpu_count() or 1))
