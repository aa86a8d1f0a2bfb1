"""`runtime/worker_thread.py`: one thread, in order, and an end that is bounded."""

import asyncio
import logging
import threading

import pytest

from epochal.runtime import worker_thread
from epochal.runtime.worker_thread import SharedThreads, WorkerThread

WAIT_S = 10.0


async def test_worker_thread_leaves_the_event_loop_free_and_keeps_to_one_thread() -> None:
    worker = WorkerThread("test")
    loop_went_on = threading.Event()
    threads: list[int] = []

    def call() -> bool:
        threads.append(threading.get_ident())
        return loop_went_on.wait(WAIT_S)

    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(worker.run(call)), group.create_task(worker.run(call))
        await asyncio.sleep(0)
        loop_went_on.set()
    assert first.result()
    assert second.result()
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads
    await worker.aclose()


async def test_worker_thread_close_waits_for_the_running_call() -> None:
    worker = WorkerThread("test")
    release, ended = threading.Event(), threading.Event()

    def call() -> None:
        assert release.wait(WAIT_S)
        ended.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(call))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(release.set)
        await worker.aclose()
        assert ended.is_set()
    await worker.aclose()
    with pytest.raises(RuntimeError):
        await worker.run(call)


async def test_worker_thread_close_with_an_endless_call_returns_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_thread, "CLOSE_TIMEOUT_S", 0.01)
    worker = WorkerThread("stuck")
    release = threading.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(release.wait))
        await asyncio.sleep(0)
        with caplog.at_level(logging.WARNING):
            await worker.aclose()
        release.set()
    assert [record.message for record in caplog.records] == ["worker_still_busy_at_close"]


async def test_shared_threads_run_calls_side_by_side() -> None:
    worker, both = SharedThreads(), threading.Barrier(2)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(worker.run(lambda: both.wait(WAIT_S))) for _ in range(2)]
    assert {call.result() for call in calls} == {0, 1}
