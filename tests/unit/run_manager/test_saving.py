"""Saving the newest replica: the first, then at a bounded rate, the last one at the end; a full disk is waited for."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from epochal.run_manager.replica.merged_outcomes import HeldReplica
from epochal.run_manager.replica.saving import MIN_INTERVAL_S, ReplicaSaving
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.state.model.replica import Replica
from epochal.state.wire import Sha256
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time


def replica(step: int) -> HeldReplica:
    values = {"w": np.full(2, step, np.float32)}
    return HeldReplica(Replica(step, values, {}), Sha256(f"{step:064x}"))


class Keeper:
    """Holds what it is told to."""

    def __init__(self) -> None:
        self.held: HeldReplica | None = None
        self._changed = Broadcast()

    def hold(self, step: int) -> None:
        self.held = replica(step)
        self._changed.notify()

    async def other_than(self, step: int | None) -> HeldReplica:
        while self.held is None or self.held.step == step:
            await self._changed.wait()
        return self.held


class Disk:
    """Takes replicas, and fails as often as a test wants.

    Attributes:
        steps: of the replicas that were saved.
    """

    def __init__(self, *errors: Exception, takes_s: float = 0.0) -> None:
        self.steps: list[int] = []
        self._errors = list(errors)
        self._takes_s = takes_s

    async def save(self, held: HeldReplica) -> None:
        await asyncio.sleep(self._takes_s)
        if self._errors:
            raise self._errors.pop(0)
        self.steps.append(held.step)


async def settle() -> None:
    await asyncio.sleep(0.01)


@in_virtual_time
async def test_first_is_saved_at_once_and_later_ones_at_a_bounded_rate() -> None:
    keeper, disk = Keeper(), Disk()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ReplicaSaving(keeper, disk.save, RetryPolicy(clock=VirtualClock())).run())
        for step in range(5):
            keeper.hold(step)
            await settle()
        assert disk.steps == [0]
        await asyncio.sleep(MIN_INTERVAL_S)
        assert disk.steps == [0, 4]
        running.cancel()


@in_virtual_time
async def test_slow_disk_is_asked_for_a_small_part_of_the_time() -> None:
    keeper, disk = Keeper(), Disk(takes_s=30.0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ReplicaSaving(keeper, disk.save, RetryPolicy(clock=VirtualClock())).run())
        keeper.hold(0)
        await asyncio.sleep(31.0)
        keeper.hold(1)
        await asyncio.sleep(500.0)
        assert disk.steps == [0]
        await asyncio.sleep(200.0)
        assert disk.steps == [0, 1]
        running.cancel()


@in_virtual_time
async def test_last_one_is_saved_at_the_end_once() -> None:
    keeper, disk = Keeper(), Disk()
    saving = ReplicaSaving(keeper, disk.save, RetryPolicy(clock=VirtualClock()))
    await saving.finish()
    keeper.hold(7)
    await saving.finish()
    await saving.finish()
    assert disk.steps == [7]


@in_virtual_time
async def test_full_disk_is_tried_again_and_a_wrong_folder_ends_the_client() -> None:
    keeper, disk = Keeper(), Disk(ModelUnavailable("full"), InvalidInput("no folder"))
    keeper.hold(1)
    saving = ReplicaSaving(keeper, disk.save, RetryPolicy(clock=VirtualClock()))
    await saving.finish()
    assert disk.steps == []
    with pytest.raises(InvalidInput):
        await saving.run()


@in_virtual_time
async def test_saved_replica_is_not_held_longer_than_it_is_written() -> None:
    keeper, disk = Keeper(), Disk()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ReplicaSaving(keeper, disk.save, RetryPolicy(clock=VirtualClock())).run())
        keeper.hold(1)
        assert keeper.held is not None
        first = weakref.ref(keeper.held.replica.parameters["w"])
        await settle()
        keeper.hold(2)
        gc.collect()
        assert first() is None
        running.cancel()
