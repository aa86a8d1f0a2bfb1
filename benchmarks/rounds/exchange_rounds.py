"""Rounds of real clients whose trainer computes nothing: their time and memory, and what the first one waits for."""

import asyncio
import contextlib
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.process_usage import memory_bytes
from benchmarks.rounds.bare_round import round_starts
from benchmarks.servers import LONG, RUN_ID, coordinator_of
from epochal.coordinator.machine.instructions import Instruction, TimesTold
from epochal.coordinator.machine.records import Kept, replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.open import open_store_reader
from epochal.state.errors import EpochalError
from epochal.state.results import ResultHeader, result_of
from epochal.tools.testnet.child_processes import Child
from tests.support.data.states import state_text

SIZES = {10: (256, 4_310), 50: (512, 11_450), 100: (1024, 11_800), 500: (2048, 29_900)}
"""Embedding and hidden width of embedded models by their parameters in millions."""
RUN_TIMEOUT_S = 900.0
POLL_S = 0.05
PEAK = "VmHWM"
SPARE_DISK_BYTES = 2 * 10**9
"""A cell that would leave less of the disk is not measured."""
WARMING_ROUNDS = 2
"""The first round also waits for whoever joins last, and in the next one files are not yet written over older ones."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run.

    Attributes:
        millions: of the model's parameters, one of `SIZES`.
        clients: their number.
        codec: of the run; sparse with error feedback, which it needs.
        rounds: number of rounds whose time is measured.
        is_joined: whether the start of the clients is measured, too.
    """

    millions: int
    clients: int
    codec: str
    rounds: int = 2
    is_joined: bool = False

    @property
    def name(self) -> str:
        """What the figures call it."""
        return f"{self.codec}, {self.millions} M parameters, {self.clients} clients"

    @property
    def model_bytes(self) -> int:
        """Size of the parameters in float32."""
        return 4 * self.millions * 10**6

    @property
    def disk_bytes(self) -> int:
        """Approximate size of all files: results stay with the coordinator until the run ends."""
        result_bytes = int(self.millions * 1e6 * bytes_a_parameter(self.codec))
        steps = self.rounds + WARMING_ROUNDS + 1
        residuals = 2 * self.model_bytes if self.codec == "sparse" else 0
        update_bytes = int(self.millions * 1e6 * bytes_a_parameter("int4"))
        a_client = 4 * self.model_bytes + result_bytes + update_bytes + residuals
        coordinator = 7 * self.model_bytes + steps * update_bytes  # checkpoint, two replicas, sum, updates
        return coordinator + self.clients * (a_client + steps * result_bytes)

    @property
    def state(self) -> str:
        """Its state file."""
        embedding, hidden = SIZES[self.millions]
        overrides: dict[str, object] = {
            "config__init_min_clients": self.clients,
            "config__min_clients": self.clients,
            "config__total_steps": self.rounds + WARMING_ROUNDS + 1,
            "config__epoch_time": 3000,
            "config__waiting_for_members_extra_time": 0.05,
            "config__max_round_train_time": 600,
            "blobs__max_total_bytes": 10**11,
            "merge__codec": self.codec,
            "merge__error_feedback": self.codec == "sparse",
        }
        overrides |= {f"config__{name}": 600 for name in LONG}
        return state_text(
            run_id=RUN_ID,
            model__LLM__max_seq_len=256,
            model__LLM__data_location="Dummy",
            model__LLM__ngram={"context": 8, "embedding": embedding, "hidden": hidden},
            **overrides,
        )


def bytes_a_parameter(codec: str) -> float:
    """Return the size of a result of a million parameters, divided by their number."""
    difference = {"w": np.zeros((1000, 1000), np.float32)}
    name = "sparse-64" if codec == "sparse" else codec
    header = ResultHeader("run", 1, 0, "0" * 32, "0" * 64, "0" * 64, name)
    return result_of(header, difference).size_bytes / difference["w"].size


@dataclass(slots=True)
class Peak:
    """The peak of a process's memory, in bytes."""

    total: int = 0

    def look(self, process: int) -> None:
        """Look at a process, unless it has ended."""
        with contextlib.suppress(OSError, EpochalError):
            self.total = max(self.total, memory_bytes(PEAK, process))


@dataclass(slots=True)
class Measured:
    """What was measured of one run.

    Attributes:
        round_s: median time of a round.
        received_bytes: median of what a client received of a round.
        joined_s: from the start of the clients to their first applied results.
        start: memory of the coordinator until the clients start.
        client: memory of the client that had most.
        coordinator: its memory afterwards.
    """

    round_s: float = 0.0
    received_bytes: float = 0.0
    joined_s: float = 0.0
    start: Peak = field(default_factory=Peak)
    client: Peak = field(default_factory=Peak)
    coordinator: Peak = field(default_factory=Peak)


def measured(cell: Cell) -> Measured | None:
    """Run a cell; return None if the disk has no room for it."""
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        if shutil.disk_usage(folder).free < cell.disk_bytes + SPARE_DISK_BYTES:
            return None
        return asyncio.run(_measured(cell, Path(folder)))


async def _measured(cell: Cell, folder: Path) -> Measured:
    found = Measured()
    async with coordinator_of(cell.state, folder) as process, asyncio.TaskGroup() as group:
        found.start.look(process.child.process.pid)
        _begin_peak_anew(process.child.process.pid)
        started_s = time.time()
        children = [
            await process.children.start(
                f"client-{number}", "client", process.url, "--trainer", "null", "--spool", str(folder / "spool")
            )
            for number in range(cell.clients)
        ]
        watching = [
            group.create_task(_watch(children, found.client)),
            group.create_task(_watch([process.child], found.coordinator)),
        ]
        for child in children:
            if await child.wait(RUN_TIMEOUT_S) != 0:
                raise EpochalError(f"{child.name} did not finish:\n{child.log_tail()}")
        for task in watching:
            task.cancel()
    starts, _ = await round_starts(str(process.run_dir))
    found.joined_s = starts[2] - started_s
    found.received_bytes = await _received_bytes(str(process.run_dir))
    steps = range(WARMING_ROUNDS + 1, WARMING_ROUNDS + cell.rounds + 1)
    found.round_s = statistics.median(starts[step + 1] - starts[step] for step in steps)
    return found


async def _received_bytes(store: str) -> float:
    """Return the median of what clients say that they received of a round, from the journal in a store."""
    received: list[int] = []

    def watch(_run: Run, instructions: tuple[Instruction, ...], _kept: Kept) -> None:
        received.extend(one.times.downloaded_bytes for one in instructions if isinstance(one, TimesTold))

    async for segment in open_store_reader(store).journal.history():
        replay(segment, watch)
    return statistics.median([size for size in received if size])


def _begin_peak_anew(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


async def _watch(children: list[Child], peak: Peak) -> None:
    while True:
        for child in children:
            peak.look(child.process.pid)
        await asyncio.sleep(POLL_S)
