"""The lowest priority of this process for processor and disk, which its owner may ask for."""

import logging
import os
import sys
from pathlib import Path

from epochal.run_manager.system_tools import output_of

log = logging.getLogger(__name__)

NICENESS = 19
"""The system runs everything else first."""


def lower_priority() -> None:
    """Let every thread that this process has now, and all that it starts, give way to other programs.

    On Linux a priority is a thread's; the disk's is set where `ionice` is. What cannot be done is logged.
    """
    threads = [path.name for path in Path("/proc/self/task").glob("*")] if sys.platform == "linux" else []
    try:
        for thread in map(int, threads or (os.getpid(),)):
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
    except ProcessLookupError:  # a thread that has just ended
        pass
    except OSError as error:
        log.warning("priority_not_lowered", extra={"reason": error.strerror or str(error)})
    has_disk = bool(threads) and output_of(("ionice", "-c", "3", "-p", *threads)) is not None
    log.info("priority_lowered", extra={"processor": NICENESS, "disk": "idle" if has_disk else "as before"})
