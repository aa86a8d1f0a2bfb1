"""Asks the system: its commands, within a bound of time, and its list of processes."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

TOOL_TIMEOUT_S = 5.0
MAX_OUTPUT_CHARS = 1024 * 1024

Tool = Callable[[Sequence[str]], str | None]
"""Returns the output of a command, or None if it is not there or fails."""


def output_of(command: Sequence[str]) -> str | None:
    """Return the standard output of a command, or None if there is no such command, it fails, or it takes too long."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return ran.stdout[:MAX_OUTPUT_CHARS] if ran.returncode == 0 else None


def own_processes(proc: Path, root: int | None = None) -> dict[int, float]:
    """Return the processor seconds of a process and of those that it has started, by number; empty without `/proc`.

    Args:
        proc: where Linux shows its processes.
        root: the process; this one if None.
    """
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], times[pid] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    own = {os.getpid() if root is None else root}
    while grown := {pid for pid, parent in parents.items() if parent in own and pid not in own}:
        own |= grown
    return {pid: times[pid] for pid in own if pid in times}
