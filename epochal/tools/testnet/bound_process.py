"""`python -m epochal.tools.testnet.bound_process PARENT WORDS…`: the `epochal` command, ended when its parent ends.

A demo, or a notebook's kernel, may be killed without notice. On Linux the system then sends its processes SIGTERM
(prctl(2), `PR_SET_PDEATHSIG`); elsewhere they would continue.
"""

import ctypes
import os
import signal
import sys

from epochal.cli.main import main

_SET_PARENT_DEATH_SIGNAL = 1


def bind_to(parent: int) -> None:
    """Let the system end this process when its parent ends; end at once if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    bind_to(int(sys.argv[1]))
    sys.argv[:2] = ["epochal"]
    main()
