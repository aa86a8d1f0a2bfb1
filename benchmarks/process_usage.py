"""What processes use: their processor time, and their memory."""

import os
from pathlib import Path

from epochal.state.errors import EpochalError


def cpu_s(process: int) -> float:
    """Return the processor time in s of a process and its descendants, whenever they were started; also ended ones.

    A server may fork its workers after it listens, so they are looked up at each call.
    """
    folder = Path(f"/proc/{process}")
    fields = folder.joinpath("stat").read_text().rpartition(")")[2].split()
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # user's and system's, and those of ended children
    children = [int(child) for path in folder.glob("task/*/children") for child in path.read_text().split()]
    return own_s + sum(map(cpu_s, children))


def memory_bytes(key: str, process: int | str = "self") -> int:
    """Return a process's `VmHWM` (its peak) or `VmRSS` (its present resident memory)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise EpochalError(f"/proc/{process}/status has no {key}")
