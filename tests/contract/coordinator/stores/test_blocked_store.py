"""A service whose store is blocked: it holds, says so, and goes on by itself; not for ever."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import epochal.coordinator.run.service
import epochal.coordinator.run.store_health
import epochal.coordinator.store.directory.failures
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.stimuli import PauseRequested
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.directory.run_directory import RunDirectory
from epochal.runtime.clock import SystemClock
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import Refused, StoreFailed
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.recording_disk import FailingDisk
from tests.support.data.states import state_file


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.coordinator.store.directory.failures, "PASSING_S", 0.0)
    monkeypatch.setattr(RunDirectory, "retry_s", 0.01)


def options_on(store: RunDirectory) -> ServiceOptions:
    return ServiceOptions(store, SystemClock(), "00" * 32, RunHistory(store.journal, InlineWorker()))


@contextlib.asynccontextmanager
async def service_on(folder: Path, failing: FailingDisk) -> AsyncIterator[CoordinatorService]:
    """Serve a run that waits for members, in a run directory on this disk."""
    store = await RunDirectory.open(folder, 1_000_000, failing.disk)
    opened = await CoordinatorService.open(options_on(store), state_file())
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(opened.serve())
        await opened.started.wait()
        yield opened
        serving.cancel()
    await store.aclose()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.__getitem__)
async def test_service_holds_and_goes_on_by_itself(tmp_path: Path, code: int) -> None:
    failing = FailingDisk()
    async with service_on(tmp_path, failing) as service, asyncio.timeout(BOUND_S):
        failing.write_errno = code
        for _ in range(2):
            with pytest.raises(Refused, match="goes on by itself") as caught:
                await service.submit(PauseRequested())
            assert caught.value.kind == "store-failed"
        assert not service.accepting
        assert "goes on by itself" in str(service.health.problem)
        published = service.published
        calls = failing.call_count
        while failing.call_count < calls + 3:
            await asyncio.to_thread(int)
        assert service.published is published
        failing.write_errno = 0
        while not service.accepting:
            await asyncio.to_thread(int)
        assert service.health.problem is None
        await service.submit(PauseRequested())
        assert service.run.clock.phase is RunState.PAUSED


async def test_service_does_not_hold_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailingDisk()
    async with service_on(tmp_path, failing) as service, asyncio.timeout(BOUND_S):
        monkeypatch.setattr(epochal.coordinator.run.store_health, "MAX_HOLD_S", 0.05)
        failing.write_errno = errno.ENOSPC
        with pytest.raises(Refused):
            await service.submit(PauseRequested())
        await service.health.failed.wait()
        assert "has lasted for" in str(service.health.failure)
        failing.write_errno = 0
        with pytest.raises(Refused, match="cannot keep anything more"):
            await service.submit(PauseRequested())


async def test_record_is_kept_whose_segments_end_is_blocked(tmp_path: Path) -> None:
    failing = FailingDisk()
    async with service_on(tmp_path, failing) as service, asyncio.timeout(BOUND_S):
        service._journal._is_segment_due = True
        failing.sync_errno, failing.after_calls = errno.ENOSPC, 1
        await service.submit(PauseRequested())
        assert service.run.clock.phase is RunState.PAUSED
        assert service.health.problem is not None
        failing.sync_errno = 0
        while not service.accepting:
            await asyncio.to_thread(int)
        assert len(list((tmp_path / "journal").glob("*.log"))) == 2


async def test_service_on_a_blocked_store_does_not_start(tmp_path: Path) -> None:
    failing = FailingDisk()
    store = await RunDirectory.open(tmp_path, 1_000_000, failing.disk)
    opened = await CoordinatorService.open(options_on(store), state_file())
    failing.write_errno = errno.ENOSPC
    with pytest.raises(StoreFailed, match="No space left"):
        await opened.serve()
    await store.aclose()
