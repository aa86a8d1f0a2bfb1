"""A run of several epochs, simulated once and kept in a run directory, for tests of its journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import Stamped, Stimulus
from epochal.coordinator.proof.audit import audit_store
from epochal.coordinator.proof.compaction import Compaction
from epochal.coordinator.run.run_journal import RunJournal
from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.sql.notes import KEY
from epochal.coordinator.store.store import Store
from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import StoreFailed
from epochal.state.wire import Seed, Sha256
from tests.support.data.stored_blobs import blob_bytes, one_piece
from tests.support.simulate.memory_store import MemoryStore
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import simulated_run, small_state

MAX_BLOB_BYTES = 100_000_000
SHORT_EPOCHS = {
    "config__epoch_time": 0.5,
    "config__warmup_time": 0.45,
    "config__max_round_train_time": 0.45,
    "config__cooldown_time": 3,
    "config__total_steps": 24,
}
SEED = Seed("5e" * 32)


def compact_state(**overrides: object) -> StateFile:
    """Return a small state of short epochs whose journal is compacted."""
    return small_state(6, **(SHORT_EPOCHS | {"run__keep_journal": "compact"} | overrides))


@dataclass(frozen=True, slots=True)
class KeptRun:
    """What a run's store holds, all of its journal included."""

    segments: tuple[Segment, ...]
    blobs: Mapping[Sha256, bytes]
    private_key: bytes


async def simulated_segments(seed: int, state: StateFile) -> KeptRun:
    """Simulate a run to its end; return what its store holds."""
    async with simulated_run(state, seed) as run:
        await run.play(*(ClientSpec(),) * 3)
        store: MemoryStore = run.coordinator.store
        blobs = {sha256: await blob_bytes(store.blobs, sha256) for sha256 in await store.blobs.held()}
        key = await store.keys.private_key()
        assert key is not None
        return KeptRun(tuple(run.coordinator.journal.segments), blobs, key)


async def keep_in(folder: Path, kept: KeptRun) -> None:
    """Write a run into a new run directory, as a coordinator would have."""
    store = await open_folder_store(folder, MAX_BLOB_BYTES)
    for segment in kept.segments:
        await store.journal.open_segment(segment.snapshot)
        for record in segment.records:
            await store.journal.append(record)
    for sha256, data in kept.blobs.items():
        await store.blobs.receive(sha256, len(data), one_piece(data))
    await store.notes.write(KEY, kept.private_key)
    await store.aclose()


class OpenedRun:
    """A run directory and its run, whose stimuli are kept one at a time, without a service."""

    def __init__(self, store: Store, journal: RunJournal) -> None:
        self.store = store
        self._journal = journal

    @classmethod
    async def open(cls, folder: Path, disk: Disk = REAL_DISK) -> "OpenedRun":
        store = await open_folder_store(folder, MAX_BLOB_BYTES, disk=disk)
        try:
            journal = await RunJournal.load(store.journal)
        except BaseException:
            await store.aclose()
            raise
        assert journal is not None
        return cls(store, journal)

    @property
    def run(self) -> Run:
        return self._journal.run

    async def submit(self, stimulus: Stimulus) -> None:
        """Keep what the machine makes of it."""
        stamped = Stamped(stimulus, self.run.clock.now_s + 1, SEED)
        after, _ = handle(self.run, stamped)
        if after is not self.run:
            await self._journal.append(after, (stamped,), ends_segment=False)

    def compaction(self) -> Compaction:
        """Return what compacts the journal."""
        return Compaction(self.store, lambda: self.run, self.submit, InlineWorker(), Projection.decoded)


async def compact(folder: Path, steps: int = 1000, disk: Disk = REAL_DISK) -> int:
    """Compact the journal in a run directory in at most so many steps; return how many it took."""
    opened = await OpenedRun.open(folder, disk)
    compaction, taken = opened.compaction(), 0
    try:
        while taken < steps and await compaction.step():
            taken += 1
    finally:
        await opened.store.aclose()
    return taken


async def problems_of(folder: Path) -> tuple[str, ...]:
    """Return what an audit of a folder finds wrong, which may be that there is nothing to audit."""
    try:
        return (await audit_store(str(folder), recompute=False)).problems
    except StoreFailed as failure:
        return (failure.message,)
