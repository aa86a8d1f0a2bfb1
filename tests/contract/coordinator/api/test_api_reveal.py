"""Commit before reveal: when a real coordinator shows others' results of the round under way, and to whom."""

import asyncio

from epochal.state.messages.requests import FailureReport
from epochal.state.wire import sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, problem, training


async def delivered(client: WireClient) -> bytes:
    """Deliver the client's result, and return its bytes."""
    data = client.result(REPLICA, DIFFERENCE)
    assert (await client.commit(data)).status_code == 200
    assert (await client.put_blob(data)).status_code == 201
    return data


async def listed(client: WireClient, wait_s: float = 0.0) -> list[str]:
    """Return the digests that the coordinator lists for this client."""
    current = client.served.service.run.round
    assert current is not None
    place = f"/rounds/{current.number.step}/results?attempt={current.number.attempt}&after=0&wait_s={wait_s}"
    return [result["result_sha256"] for result in (await client.send("GET", place)).json()["results"]]


async def read(client: WireClient, data: bytes, token: str | None = None) -> str:
    """Return how the coordinator answers a client that reads a result: `read`, or the kind of the problem."""
    answer = await client.send("GET", f"/v1/blobs/{sha256_hex(data)}", token=token)
    return "read" if answer.status_code == 200 and answer.content == data else problem(answer)


async def stepped(coordinator: Served, step: int) -> None:
    """Wait until the run has come to this step."""
    version = -1
    async with asyncio.timeout(BOUND_S):
        while coordinator.service.run.progress.step < step:
            published = await coordinator.service.readers.wait_published(version, None, 1.0)
            version = version if published is None else published.version


async def test_results_are_shown_only_after_the_readers_own_commitment(coordinator: Served) -> None:
    first, second = await training(coordinator)
    data = await delivered(first)
    assert await listed(second) == []
    assert await read(second, data) == "not-now"
    assert (await read(first, data), await listed(first)) == ("read", [sha256_hex(data)])
    own = second.result(REPLICA, DIFFERENCE)
    await second.commit(own)
    assert await listed(second) == [sha256_hex(data)]
    assert await read(second, data) == "read"


async def test_commitment_wakes_a_reader_that_waits_for_results(coordinator: Served) -> None:
    first, second = await training(coordinator)
    data = await delivered(first)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:  # less than the reader waits if nothing wakes it
        waiting = tasks.create_task(listed(second, wait_s=10.0))
        for _ in range(50):  # until it waits
            await asyncio.sleep(0)
        await second.commit(second.result(REPLICA, DIFFERENCE))
    assert waiting.result() == [sha256_hex(data)]


async def test_client_that_failed_reads_only_when_no_result_is_awaited(coordinator: Served) -> None:
    first, second, third = await training(coordinator, 3)
    data = await delivered(first)
    current = coordinator.service.run.round
    assert current is not None
    failed = FailureReport(current.number.step, current.number.attempt, "trainer", "out of memory", None)
    assert (await second.send("POST", "/failures", failed)).status_code == 200
    assert (await listed(second), await read(second, data)) == ([], "not-now")
    assert problem(await second.commit(second.result(REPLICA, DIFFERENCE))) == "already-committed"
    own = await delivered(third)
    assert await listed(second) == [sha256_hex(data), sha256_hex(own)]
    assert await read(second, data) == "read"


async def test_client_that_left_commits_no_more_once_results_are_shown(coordinator: Served) -> None:
    first, second, third = await training(coordinator, 3)
    assert (await third.send("DELETE", "/clients/me")).status_code == 204
    data = await delivered(first)
    await delivered(second)
    await third.join()
    assert await read(third, data) == "read"
    assert problem(await third.commit(third.result(REPLICA, DIFFERENCE))) == "late-result"


async def test_results_are_shown_to_everybody_once_training_is_over(coordinator: Served) -> None:
    first, second = await training(coordinator)
    late = WireClient(coordinator, 9)
    await late.join()
    data = await delivered(first)
    assert (await listed(late), await read(late, data)) == ([], "not-now")
    await delivered(second)
    report = {"step": 1, "attempt": 0, "replica_digest": coordinator.service.run.models.checkpoints[0].replica_digest}
    for client in (first, second):
        assert (await client.send("POST", "/attestations", report | {"received": "3"})).status_code == 200
    await stepped(coordinator, 2)
    assert await read(late, data) == "read"


async def test_operator_reads_every_result_at_any_time(coordinator: Served) -> None:
    first, _ = await training(coordinator)
    data = await delivered(first)
    assert await read(first, data, token=ADMIN) == "read"
