"""A service whose store is blocked: it holds, says so, and goes on by itself; not for ever."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import epochal.coordinator.run.store_health
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.journal_records import Snapshot
from epochal.coordinator.machine.stimuli import PauseRequested
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.files.folder import DATABASE_FILE, FolderPlace
from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.store import Store
from epochal.runtime.clock import SystemClock
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import Refused, StoreBlocked, StoreFailed
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.simulate.memory_store import MemoryJournal, MemoryPlace, MemoryStore


@contextmanager
def full_disk(run_dir: Path) -> Iterator[None]:
    """Let no file of this process grow beyond the length of a run's write-ahead log, and some bytes: a full disk."""
    length = (run_dir / f"{DATABASE_FILE}-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length + 100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderPlace, "retry_s", 0.01)
    monkeypatch.setattr(MemoryPlace, "retry_s", 0.01)


def options_on(store: Store) -> ServiceOptions:
    return ServiceOptions(store, SystemClock(), "00" * 32, RunHistory(store.journal, InlineWorker()))


@contextlib.asynccontextmanager
async def service_on(store: Store) -> AsyncIterator[CoordinatorService]:
    """Serve a run that waits for members."""
    opened = await CoordinatorService.open(options_on(store), state_file())
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(opened.serve())
        await opened.started.wait()
        yield opened
        serving.cancel()
    await store.aclose()


async def until_accepting(service: CoordinatorService) -> None:
    while not service.accepting:
        await asyncio.to_thread(int)


async def test_service_holds_and_goes_on_by_itself(tmp_path: Path) -> None:
    async with service_on(await open_folder_store(tmp_path, 1_000_000)) as service, asyncio.timeout(BOUND_S):
        with full_disk(tmp_path):
            for _ in range(2):
                with pytest.raises(Refused, match="goes on by itself") as caught:
                    await service.submit(PauseRequested())
                assert caught.value.kind == "store-failed"
            assert not service.accepting
            assert "goes on by itself" in str(service.health.problem)
            published, blocks = service.published, service.health.block_count
            while service.health.block_count < blocks + 3:
                await asyncio.to_thread(int)
            assert service.published is published
        await until_accepting(service)
        assert service.health.problem is None
        await service.submit(PauseRequested())
        assert service.run.clock.phase is RunState.PAUSED


async def test_service_does_not_hold_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service_on(await open_folder_store(tmp_path, 1_000_000)) as service, asyncio.timeout(BOUND_S):
        monkeypatch.setattr(epochal.coordinator.run.store_health, "MAX_HOLD_S", 0.05)
        with full_disk(tmp_path):
            with pytest.raises(Refused):
                await service.submit(PauseRequested())
            await service.health.failed.wait()
            assert "has lasted for" in str(service.health.failure)
        with pytest.raises(Refused, match="cannot keep anything more"):
            await service.submit(PauseRequested())


class FullForSnapshots(MemoryJournal):
    """A journal whose next snapshots find no room while it is set."""

    is_full = False

    async def open_segment(self, snapshot: Snapshot) -> None:
        if self.is_full:
            self.is_full = False
            raise StoreBlocked("no room", is_full=True)
        await super().open_segment(snapshot)


async def test_record_is_kept_whose_segments_end_is_blocked() -> None:
    journal = FullForSnapshots()
    async with service_on(MemoryStore(1_000_000, journal)) as service, asyncio.timeout(BOUND_S):
        service._journal._is_segment_due = journal.is_full = True
        await service.submit(PauseRequested())
        assert service.run.clock.phase is RunState.PAUSED
        assert service.health.problem is not None
        await until_accepting(service)
        assert await journal.newest_segment() == 1


async def test_service_on_a_blocked_store_does_not_start(tmp_path: Path) -> None:
    store = await open_folder_store(tmp_path, 1_000_000)
    opened = await CoordinatorService.open(options_on(store), state_file())
    with full_disk(tmp_path), pytest.raises(StoreFailed, match="no room on the disk"):
        await opened.serve()
    await store.aclose()
