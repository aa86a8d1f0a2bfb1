"""Leases of slices, in virtual time: who gets a slice, and when whoever puts the update together makes it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator.blobs import leased_slices
from epochal.coordinator.blobs.leased_slices import FREE_FOR_S, AddedResult, LeasedSlices, SharedSum
from epochal.coordinator.blobs.leases import GRACE_S, LEASE_S, MAX_LEASES, MIN_BYTES_PER_S, PRESENT_FOR_S
from epochal.runtime.files.spool import Spool
from epochal.runtime.worker_thread import InlineWorker
from epochal.state import slices as cutting
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import Refused
from epochal.state.messages.slice_messages import MAX_RESULTS
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.updates import Weight
from epochal.state.wire import ClientId, Sha256
from tests.support.data.stored_blobs import one_piece
from tests.support.simulate.virtual_time import in_virtual_time

LAYOUT = TensorLayout((("a", (3,)), ("b", (3,))))
MERGE = MergeConfig(codec="float32", update="exact")
SPOOL = Spool(Path("/var/tmp"))
MEAN = np.ones(3, np.float32).tobytes()
SIZE_BYTES = 1000


def now_s() -> float:
    return asyncio.get_running_loop().time()


def result(number: int) -> AddedResult:
    return AddedResult(ClientId(f"{number:032x}"), Sha256(f"{number:064x}"), Weight(number + 1))


async def place_of(sha256: Sha256) -> tuple[str, int] | None:
    return f"http://store/{sha256}", SIZE_BYTES


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> LeasedSlices:
    monkeypatch.setattr(cutting, "SLICE_VALUES", 1)
    return LeasedSlices(now_s, place_of, InlineWorker())


async def begun(slices: LeasedSlices, workers: int = 1, results: int = 1) -> SharedSum:
    """A sum of that many results, begun while that many workers are present."""
    for number in range(workers):
        assert await slices.lease(f"worker {number}", 0.0) is None
    total = slices.begin(5, MERGE, LAYOUT, SPOOL)
    assert total is not None
    for number in range(results):
        total.add(result(number))
    return total


async def refused(slices: LeasedSlices, lease: str) -> Refusal:
    with pytest.raises(Refused) as error:
        await slices.renew(lease, 0, 0.0)
    return error.value.kind


@in_virtual_time
async def test_sum_is_cut_into_as_many_slices_as_workers_are_present(slices: LeasedSlices) -> None:
    assert slices.begin(5, MERGE, LAYOUT, SPOOL) is None
    assert len((await begun(slices, 1)).slices) == 1
    slices.end()
    assert len((await begun(slices, 2)).slices) == 2
    await asyncio.sleep(PRESENT_FOR_S + 1)
    assert slices.begin(5, MERGE, LAYOUT, SPOOL) is None


@in_virtual_time
async def test_worker_hears_of_results_as_they_come(slices: LeasedSlices) -> None:
    total = await begun(slices, 1, MAX_RESULTS + 1)
    found = await slices.lease("one", 0.0)
    assert found is not None
    assert [(item.sha256, item.batch_count) for item in found.results] == [
        (result(number).sha256, number + 1) for number in range(MAX_RESULTS)
    ]
    found = await slices.renew(found.lease, MAX_RESULTS, 10.0)
    assert (now_s(), len(found.results), found.is_whole) == (0.0, 1, False)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(slices.renew(found.lease, MAX_RESULTS + 1, 10.0))
        await asyncio.sleep(1.0)
        total.add(result(MAX_RESULTS + 1))
        assert [item.sha256 for item in (await waiting).results] == [result(MAX_RESULTS + 1).sha256]
        waiting = tasks.create_task(slices.renew(found.lease, MAX_RESULTS + 2, 10.0))
        making = tasks.create_task(slices.made(total, total.slices[0]))
        last = await waiting
        assert (now_s(), last.results, last.is_whole) == (1.0, (), True)
        await slices.deliver(found.lease, 2 * len(MEAN), one_piece(2 * MEAN))
        made = await making
    assert made is not None
    assert made.to_bytes() == 2 * MEAN


@in_virtual_time
async def test_slice_that_is_not_renewed_goes_to_another_worker(slices: LeasedSlices) -> None:
    total = await begun(slices)
    first = await slices.lease("one", 0.0)
    assert first is not None
    async with asyncio.TaskGroup() as tasks:
        making = tasks.create_task(slices.made(total, total.slices[0]))
        second = await slices.lease("two", LEASE_S + 1)
        assert second is not None
        assert now_s() == LEASE_S
        assert await refused(slices, first.lease) is Refusal.GONE
        assert await making is None
    assert MAX_LEASES == 2
    assert now_s() == 2 * LEASE_S
    assert await slices.lease("three", 1.0) is None


@in_virtual_time
async def test_slice_that_no_worker_takes_is_made_by_whoever_waits(slices: LeasedSlices) -> None:
    total = await begun(slices)
    assert await slices.made(total, total.slices[0]) is None
    assert now_s() == FREE_FOR_S
    assert await slices.lease("late", 1.0) is None


@in_virtual_time
async def test_slow_worker_keeps_a_slice_no_longer_than_its_bytes_need(slices: LeasedSlices) -> None:
    total = await begun(slices)
    found = await slices.lease("slow", 0.0)
    assert found is not None
    for _ in range(30):  # while results may follow, for as long as the round takes
        await asyncio.sleep(LEASE_S - 1)
        await slices.renew(found.lease, 1, 0.0)
    began_s = now_s()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(slices.made(total, total.slices[0]))
        while now_s() - began_s <= GRACE_S + 24 / MIN_BYTES_PER_S:
            await slices.renew(found.lease, 1, 0.0)
            await asyncio.sleep(LEASE_S - 1)
        with pytest.raises(Refused, match="goes elsewhere"):
            await slices.renew(found.lease, 1, 0.0)


@in_virtual_time
async def test_bytes_count_once_and_only_while_the_lease_lasts(slices: LeasedSlices) -> None:
    total = await begun(slices, 2)
    first, second = [await slices.lease(name, 0.0) for name in ("one", "two")]
    assert first is not None
    assert second is not None
    with pytest.raises(Refused, match="may follow"):
        await slices.deliver(first.lease, len(MEAN), one_piece(MEAN))
    async with asyncio.TaskGroup() as tasks:
        making = [tasks.create_task(slices.made(total, part)) for part in total.slices]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as cut:
            await slices.deliver(first.lease, len(MEAN), one_piece(MEAN[:-1]))
        assert cut.value.kind is Refusal.BODY_INCOMPLETE
        await slices.deliver(first.lease, len(MEAN), one_piece(MEAN))
        assert await refused(slices, first.lease) is Refusal.GONE
        slices.give_back(second.lease)
        third = await slices.lease("three", 0.0)
        assert third is not None
        await slices.deliver(third.lease, len(MEAN), one_piece(MEAN))
    assert [made.to_bytes() for task in making if (made := task.result())] == [MEAN, MEAN]


@pytest.mark.parametrize("body", [MEAN[:-4], np.full(3, np.inf, np.float32).tobytes()], ids=["size", "finite"])
@in_virtual_time
async def test_worker_of_wrong_bytes_is_counted_no_more(slices: LeasedSlices, body: bytes) -> None:
    total = await begun(slices, 2)
    found = await slices.lease("worker 0", 0.0)
    assert found is not None
    total.whole_since_s = now_s()
    with pytest.raises(Refused) as wrong:
        await slices.deliver(found.lease, len(body), one_piece(body))
    assert wrong.value.kind is Refusal.RESULT_INVALID
    assert await refused(slices, found.lease) is Refusal.GONE
    with pytest.raises(Refused, match="it gets no other"):
        await slices.lease("worker 0", 0.0)
    assert slices.worker_count == 1


@in_virtual_time
async def test_full_disk_of_the_coordinator_refuses_the_slice(slices: LeasedSlices, tmp_path: Path) -> None:
    layout = TensorLayout((("w", (100_000,)),))
    await slices.lease("one", 0.0)
    total = slices.begin(1, MERGE, layout, Spool(tmp_path, max_bytes=10))
    found = await slices.lease("one", 0.0)
    assert total is not None
    assert found is not None
    total.whole_since_s = now_s()
    with pytest.raises(Refused) as full:
        await slices.deliver(found.lease, layout.size_bytes, one_piece(bytes(layout.size_bytes)))
    assert full.value.kind is Refusal.BLOBS_FULL


@in_virtual_time
async def test_result_that_is_not_in_the_store_leaves_the_slice_to_whoever_waits(slices: LeasedSlices) -> None:
    async def nowhere(_: Sha256) -> None:
        return None

    slices = LeasedSlices(now_s, nowhere, InlineWorker())
    total = await begun(slices)
    for _ in range(MAX_LEASES):
        with pytest.raises(Refused, match="not in the object store"):
            await slices.lease("one", 0.0)
    assert await slices.lease("one", 0.0) is None
    assert await slices.made(total, total.slices[0]) is None
    assert now_s() == 0.0


@in_virtual_time
async def test_next_sum_ends_the_leases_of_the_one_before(slices: LeasedSlices) -> None:
    await begun(slices)
    found = await slices.lease("one", 0.0)
    assert found is not None
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(refused(slices, found.lease))
        slices.begin(5, MERGE, LAYOUT, SPOOL)
        assert await waiting is Refusal.GONE


async def test_no_more_workers_are_counted_than_the_limit(
    slices: LeasedSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_slices, "MAX_WORKERS", 1)
    await slices.lease("one", 0.0)
    with pytest.raises(Refused) as many:
        await slices.lease("two", 0.0)
    assert many.value.kind is Refusal.OVERLOADED
