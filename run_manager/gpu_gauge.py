"""Reads how the GPUs are used on which a client trains, by `nvidia-smi`, beside its other work.

A reading is of the last moments before it: the driver averages over at most a second. It begins as the training ends,
while the result is encoded, and no result waits for it: one that takes longer is reported with the next result.
"""

import re
import threading
from collections.abc import Callable
from pathlib import Path

from epochal.run_manager.system_tools import Tool, output_of, own_processes
from epochal.state.messages.round_times import GpuUse
from epochal.state.model.computed_class import computed_class

NO_GPU = frozenset({"cpu", "mps", "unknown"})
"""Devices of which nothing is read."""
CARDS = (
    "nvidia-smi",
    "--query-gpu=memory.used,memory.total,utilization.gpu,uuid,name",
    "--format=csv,noheader,nounits",
)
PROCESSES = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
MIB = 1024**2
PERCENT = 100
_CARD = re.compile(r"^(\d{1,9}), (\d{1,9}), (\d{1,3}), ([^,\n]+), ([^\n]+)$", re.MULTILINE)
_PROCESS = re.compile(r"^(\d{1,10}), ([^,\n]+)$", re.MULTILINE)


def gpu_use(computed: str, tool: Tool = output_of, proc: Path = Path("/proc")) -> GpuUse | None:
    """Return the use of the GPUs of a client; None if none is shown. It blocks for a moment.

    They are the cards on which its processes compute. Where `nvidia-smi` does not show these, such as in a container,
    they are all cards of the name in the class.

    Args:
        computed: the class of its computation (`state/model/computed_class.py`).
        tool: runs `nvidia-smi`.
        proc: where Linux shows its processes.
    """
    named = [
        one for one in _CARD.findall(tool(CARDS) or "") if computed_class("bf16", one[4]).endswith(_device(computed))
    ]
    if not named:
        return None
    own = own_processes(proc)
    used = {uuid for pid, uuid in _PROCESS.findall(tool(PROCESSES) or "") if int(pid) in own}
    cards = [one for one in named if one[3] in used] or named
    return GpuUse(
        memory_bytes=sum(int(one[0]) for one in cards) * MIB,
        memory_total_bytes=sum(int(one[1]) for one in cards) * MIB,
        utilisation=round(min(1.0, sum(int(one[2]) for one in cards) / len(cards) / PERCENT), 3),
    )


class GpuGauge:
    """The readings of one client, one at a time.

    Args:
        read: takes the class of the client's computation and returns a reading; called in a thread.
    """

    def __init__(self, read: Callable[[str], GpuUse | None] = gpu_use) -> None:
        self._read = read
        self._thread: threading.Thread | None = None
        self._taken: GpuUse | None = None

    def begin(self, computed: str) -> None:
        """Begin a reading, unless the client computes on no GPU or the last reading is not done yet."""
        if _device(computed).removeprefix("/") in NO_GPU or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._take, args=(computed,), name="gpu-gauge", daemon=True)
        self._thread.start()

    def taken(self) -> GpuUse | None:
        """Return the last reading that is done, once."""
        taken, self._taken = self._taken, None
        return taken

    def _take(self, computed: str) -> None:
        self._taken = self._read(computed)


def _device(computed: str) -> str:
    """Return the device of a class, with the slash before it."""
    return "/" + computed.partition("/")[2]
