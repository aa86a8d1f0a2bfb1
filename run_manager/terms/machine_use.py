"""Observes by whom a machine is used: keyboard and mouse, processor, GPU. Each by the tools that the machine has.

Linux is asked through `xprintidle` or `loginctl`, `/proc` and `nvidia-smi`, macOS through `ioreg` and its load average.
The rule kept here: what a machine does not tell is reported once by `unknown`, and is None in an observation.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from epochal.run_manager.system_tools import Tool, output_of, own_processes
from epochal.run_manager.terms.idle_policy import Observation

LOAD_AVERAGE_S = 60.0
"""Time over which the system's load is averaged."""


class MachineUse:
    """Observes the machine of this process. Its calls block for a moment.

    Args:
        tool: runs the system's commands.
        proc: where Linux shows its processes.
        is_macos: whether this is macOS.
    """

    def __init__(
        self, tool: Tool = output_of, proc: Path = Path("/proc"), *, is_macos: bool = sys.platform == "darwin"
    ) -> None:
        self._tool, self._proc, self._is_macos = tool, proc, is_macos
        self._before: tuple[float, float, float] | None = None
        self._own_load = 0.0

    def observe(self) -> Observation:
        """Return what is known of the machine now. What others compute is known from the second time on."""
        own = own_processes(self._proc)
        percent = self._tool(("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"))
        return Observation(
            input_idle_s=self._input_idle_s(),
            others_cores=self._others_cores(own),
            cores=os.cpu_count() or 1,
            gpu_others=self._gpu_others(own),
            gpu_percent=None
            if percent is None
            else max(map(int, re.findall(r"^\d{1,3}$", percent, re.M)), default=None),
        )

    def unknown(self, seen: Observation) -> Sequence[str]:
        """Return what cannot be known on this machine, each as a sentence for its owner."""
        return [
            sentence
            for value, sentence in (
                (seen.input_idle_s, "nothing here says when a key was pressed last (xprintidle, loginctl or ioreg)"),
                (self._before, "nothing here says how busy the processor is (/proc/stat or a load average)"),
                (seen.gpu_others, "nothing here says whether others compute on a GPU (nvidia-smi)"),
            )
            if value is None
        ]

    def _input_idle_s(self) -> float | None:
        if self._is_macos:
            return idle_of_ioreg(self._tool(("ioreg", "-c", "IOHIDSystem", "-d", "4")) or "")
        shown = self._tool(("xprintidle",)) if os.environ.get("DISPLAY") else None
        if shown is not None and shown.strip().isdecimal():
            return int(shown) / 1e3
        hints = self._tool(("loginctl", "show-session", "-p", "IdleHint", "-p", "IdleSinceHint"))
        return None if hints is None else idle_of_hints(hints, time.time())

    def _others_cores(self, own: dict[int, float]) -> float | None:
        busy_s = busy_cpu_s(self._proc)
        own_s = sum(own.values()) if own else sum(os.times()[:4])
        now, before = (time.monotonic(), busy_s or 0.0, own_s), self._before
        self._before = now if busy_s is not None or hasattr(os, "getloadavg") else None
        if before is None or self._before is None or now[0] <= before[0]:
            return None
        elapsed_s = now[0] - before[0]
        own_cores = max(0.0, now[2] - before[2]) / elapsed_s
        if busy_s is not None:
            return max(0.0, (now[1] - before[1]) / elapsed_s - own_cores)
        weight = min(1.0, elapsed_s / LOAD_AVERAGE_S)
        self._own_load += weight * (own_cores - self._own_load)
        return max(0.0, os.getloadavg()[0] - self._own_load)

    def _gpu_others(self, own: dict[int, float]) -> tuple[str, ...] | None:
        text = self._tool(("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"))
        if text is None:
            return None
        listed = [int(number) for number in re.findall(r"^\d+$", text, re.M)]
        seen = [pid for pid in listed if (self._proc / str(pid)).exists()]
        if listed and not seen:
            return None  # they are in another namespace of processes, as the numbers of a container's host
        return tuple(f"process {pid}" for pid in seen if pid not in own)


def idle_of_ioreg(text: str) -> float | None:
    """Return the seconds without input that `ioreg` shows, or None."""
    found = re.search(r'"HIDIdleTime" = (\d{1,19})', text)
    return None if found is None else int(found[1]) / 1e9


def idle_of_hints(text: str, wall_s: float) -> float | None:
    """Return the seconds without input by the hints of logind, whose times are microseconds since 1970, or None."""
    hints = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if hints.get("IdleHint") not in ("yes", "no"):
        return None
    since = hints.get("IdleSinceHint", "0")
    is_idle = hints["IdleHint"] == "yes" and since.isdecimal()
    return max(0.0, wall_s - int(since) / 1e6) if is_idle else 0.0


def busy_cpu_s(proc: Path) -> float | None:
    """Return the seconds that all cores of the machine have computed, without those stolen by others' machines."""
    try:
        words = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, hard, soft = map(int, words[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")
