"""`runtime/background_task.py`: one activity at a time."""

import asyncio

import pytest

from epochal.runtime.background_task import STOP_TIMEOUT_S, BackgroundTask
from epochal.state.errors import InternalError
from tests.support.simulate.virtual_time import in_virtual_time


@in_virtual_time
async def test_replacement_starts_only_after_the_old_activity_has_ended() -> None:
    seen: list[str] = []

    async def activity(name: str) -> None:
        seen.append(f"{name} begins")
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            seen.append(f"{name} ended")

    async with asyncio.TaskGroup() as group:
        task = BackgroundTask(group, "test")
        await task.replace(activity("first"))
        await asyncio.sleep(1)
        await task.replace(activity("second"))
        assert task.is_busy
        await asyncio.sleep(1)
        await task.replace(None)
        assert not task.is_busy
    assert seen == ["first begins", "first ended", "second begins", "second ended"]


@in_virtual_time
async def test_activity_that_ignores_cancellation_is_an_internal_error() -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def never() -> None:
        raise AssertionError("started beside an activity that still runs")

    async with asyncio.TaskGroup() as group:
        task = BackgroundTask(group, "test")
        await task.replace(stubborn())
        await asyncio.sleep(0)
        with pytest.raises(InternalError):
            await task.replace(never())
        assert asyncio.get_running_loop().time() == STOP_TIMEOUT_S
        release.set()
