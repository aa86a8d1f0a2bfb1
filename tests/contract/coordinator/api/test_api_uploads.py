"""Delivering blobs to a real coordinator: again, late, in vain, and at another's expense."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import numpy as np
import pytest

from epochal.coordinator.blobs.intake import MAX_CHECKS
from epochal.coordinator.blobs.uploads import MAX_UPLOADS_PER_CLIENT
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.phase_names import RunState
from epochal.state.wire import sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, phase, problem, served, training

T = TypeVar("T")


async def deliver(client: WireClient, data: bytes) -> None:
    assert (await client.commit(data)).status_code == 200
    assert (await client.put_blob(data)).status_code == 201


async def test_copying_anothers_digest_is_refused_and_costs_the_other_nothing(coordinator: Served) -> None:
    honest, copier, _ = await training(coordinator, 3)
    data = honest.result(REPLICA, DIFFERENCE)
    await deliver(honest, data)
    assert (await copier.commit(data)).status_code == 200
    answer = await copier.put_blob(data)
    assert (problem(answer), answer.json()["rule"]) == ("result-invalid", "client_id")
    assert await blob_bytes(coordinator.service.blobs, sha256_hex(data)) == data


async def test_refused_bytes_that_nobody_needs_are_dropped(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    data = client.result(REPLICA, {"w": np.full((2, 3), np.inf, np.float32)})
    await client.commit(data)
    assert problem(await client.put_blob(data)) == "result-invalid"
    assert await coordinator.service.blobs.size(sha256_hex(data)) is None
    again = await client.put_blob(data)
    assert (problem(again), again.json()["rule"]) == ("result-invalid", "scale")


async def test_delivery_repeated_after_the_round_moved_on_is_accepted(coordinator: Served) -> None:
    clients = await training(coordinator)
    results = [client.result(REPLICA, DIFFERENCE) for client in clients]
    for client, data in zip(clients, results, strict=True):
        await deliver(client, data)
    report = {"step": 1, "attempt": 0, "replica_digest": coordinator.service.run.models.checkpoints[0].replica_digest}
    for client in clients:
        assert (await client.send("POST", "/attestations", report | {"received": "3"})).status_code == 200
    await wait_until_step(coordinator, 2)
    for client, data in zip(clients, results, strict=True):
        assert (await client.put_blob(data)).status_code == 201


async def wait_until_step(coordinator: Served, step: int) -> None:
    version = -1
    async with asyncio.timeout(BOUND_S):
        while coordinator.service.published.document.step < step:
            published = await coordinator.service.readers.wait_published(version, None, 1.0)
            version = version if published is None else published.version


async def test_delivery_after_the_training_time_is_refused_as_late() -> None:
    state = state_file(config__waiting_for_members_extra_time=0.001, config__max_round_train_time=1)
    async with served(state) as coordinator:
        client, other = await training(coordinator)
        data = client.result(REPLICA, DIFFERENCE)
        await client.commit(data)
        await deliver(other, other.result(REPLICA, DIFFERENCE))
        await phase(coordinator, RunState.ROUND_WITNESS)
        assert problem(await client.put_blob(data)) == "late-result"


async def test_delivery_of_another_length_is_refused_before_it_is_read(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)

    async def never_read() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    for length, kind in ((len(data) + 1, "blob-too-large"), (len(data) - 1, "blob-mismatch")):
        headers = {"Authorization": f"Bearer {client.token}", "Content-Length": str(length)}
        url = f"/v1/blobs/{sha256_hex(data)}"
        assert problem(await coordinator.http.put(url, content=never_read(), headers=headers)) == kind


async def test_many_deliveries_at_once_are_checked_a_few_at_a_time(coordinator: Served) -> None:
    clients = await training(coordinator, 6)
    checking = most = 0

    class Watched(InlineWorker):
        async def run(self, call: Callable[[], T]) -> T:
            nonlocal checking, most
            checking += 1
            most = max(most, checking)
            for _ in clients:
                await asyncio.sleep(0)
            found = await super().run(call)
            checking -= 1
            return found

    coordinator.handlers.intake.worker = Watched()
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(deliver(client, client.result(REPLICA, DIFFERENCE)))
    assert most == MAX_CHECKS
    round_ = coordinator.service.run.round
    assert round_ is not None
    assert len(round_.results.verified) == len(clients)


async def test_member_whose_uploads_never_end_keeps_nobody_else_from_delivering(coordinator: Served) -> None:
    slow, other = await training(coordinator)
    data = slow.result(REPLICA, DIFFERENCE)
    await slow.commit(data)
    begun, ended = asyncio.Semaphore(0), asyncio.Event()

    async def never_ending() -> AsyncIterator[bytes]:
        begun.release()
        await ended.wait()
        yield data

    async def upload() -> str | None:
        headers = {"Authorization": f"Bearer {slow.token}"}
        answer = await coordinator.http.put(f"/v1/blobs/{sha256_hex(data)}", content=never_ending(), headers=headers)
        return None if answer.is_success else problem(answer)

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        uploads = [tasks.create_task(upload()) for _ in range(3 * MAX_UPLOADS_PER_CLIENT)]
        for _ in range(MAX_UPLOADS_PER_CLIENT):
            await begun.acquire()
        await deliver(other, other.result(REPLICA, DIFFERENCE))
        ended.set()
    kinds = [upload.result() for upload in uploads]
    assert kinds.count("overloaded") == 2 * MAX_UPLOADS_PER_CLIENT
    assert kinds.count(None) == MAX_UPLOADS_PER_CLIENT


async def test_kept_checkpoint_claimed_as_a_delivery_is_not_lost(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    kept = coordinator.service.run.models.checkpoint
    assert kept is not None
    data = await blob_bytes(coordinator.service.blobs, kept.blob_sha256)
    await client.commit(client.result(REPLICA, DIFFERENCE))
    assert (await client.send("PUT", f"/v1/blobs/{kept.blob_sha256}", data)).status_code == 201
    assert await blob_bytes(coordinator.service.blobs, kept.blob_sha256) == data


async def test_blob_that_the_run_needs_and_that_is_lost_is_logged_once(
    coordinator: Served, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = await training(coordinator)
    (checkpoint,) = coordinator.service.run.models.checkpoints
    await coordinator.service.blobs.delete(checkpoint.blob_sha256)
    for sha256 in (checkpoint.blob_sha256, sha256_hex(b"nobody's"), checkpoint.blob_sha256):
        assert problem(await client.send("GET", f"/v1/blobs/{sha256}")) == "not-found"
    (said,) = [vars(record) for record in caplog.records if record.getMessage() == "blob_lost"]
    assert (said["levelname"], said["purpose"]) == ("ERROR", "the checkpoint of step 0")
