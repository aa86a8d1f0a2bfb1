"""Checkers: results of a real run in an object store, checked by lease; who dies, lies, or has no token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from epochal.coordinator.blobs import leases as given
from epochal.coordinator.machine.records import RecordBody
from epochal.coordinator.machine.stimuli import STIMULI, ResultReceived
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.wire import parse_document, sha256_hex
from epochal.tools.check_results import leases, stored_reads
from epochal.tools.check_results.result_checker import Checker
from tests.support.data.object_blobs import PREFIX
from tests.support.data.spooled import spooled
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, measured, problem, training
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_door import S3Door, s3_error
from tests.support.servers.s3_server import BUCKET
from tests.support.thinned import thinned

LEASE_S = 0.4


@pytest.fixture
async def clients(run: Served) -> list[WireClient]:
    return await training(run)


async def token_of(run: Served) -> str:
    made = await run.http.post(f"{run.run_url}/tokens/checker", headers={"Authorization": f"Bearer {ADMIN}"})
    return str(made.json()["token"])


@asynccontextmanager
async def checker(run: Served, said: list[str]) -> AsyncIterator[None]:
    """A checker that works meanwhile, from its first request for work on."""
    api = CoordinatorClient(run.http, run.service.run.state_file.run_id)
    api.use_token(await token_of(run))
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(Checker(api, RetryPolicy(), said.append).run())
        await run.handlers.arrivals.checks.asked.wait()
        yield
        working.cancel()
    await api._stored.aclose()


async def deliver(client: WireClient, data: bytes) -> None:
    assert (await client.commit(data)).status_code == 200
    await client.api.put_blob(sha256_hex(data), spooled(data))


def verdicts(run: Served) -> list[tuple[str, bool]]:
    """The journal's verdicts on results: by whom, and whether they are right."""
    assert run.store is not None
    records = [record for segment in run.store.journal.segments for record in segment.records]
    found = []
    for record in records:
        for stamped in STIMULI.validate_json(parse_document(RecordBody, record.body).stimuli):
            stimulus = stamped.stimulus
            if isinstance(stimulus, ResultReceived) and stimulus.verdict is not None:
                found.append((stimulus.verdict.checker or "coordinator", stimulus.verdict.rule is None))
    return found


async def test_checker_reads_results_and_the_journal_says_so(
    run: Served, clients: list[WireClient], door: S3Door
) -> None:
    said: list[str] = []
    results = [client.result(REPLICA, DIFFERENCE) for client in clients]
    async with checker(run, said):
        for client, data in zip(clients, results, strict=True):
            await deliver(client, data)
    (first, is_right), (second, _) = verdicts(run)
    assert first == second != "coordinator"
    assert is_right
    assert len(said) == 2
    keys = {f"/{BUCKET}/{PREFIX}/blobs/{sha256_hex(data)}" for data in results}
    reads = [request for request in door.requests if request.method == "GET" and request.path in keys]
    assert sum(request.is_signed_url for request in reads) == 2  # the others are of the coordinator, for its sum


async def test_checker_refuses_what_the_coordinator_would_refuse(run: Served, clients: list[WireClient]) -> None:
    said: list[str] = []
    client = clients[0]
    async with checker(run, said):
        with pytest.raises(Exception, match="breaks rule 'scale'"):
            await deliver(client, client.result(REPLICA, {"w": np.full((2, 3), np.inf, np.float32)}))
    ((by, is_right),) = verdicts(run)
    assert (by == "coordinator", is_right) == (False, False)
    assert "breaks rule 'scale'" in said[0]


async def test_checker_that_finds_other_bytes_costs_nobody_anything(
    run: Served, clients: list[WireClient], bucket: Any
) -> None:
    import obstore

    client = clients[0]
    data = client.result(REPLICA, DIFFERENCE)
    said: list[str] = []
    async with checker(run, said):
        await client.commit(data)
        await client.send("POST", f"/v1/blobs/{sha256_hex(data)}/grant")
        await obstore.put_async(bucket, f"{PREFIX}/incoming/{sha256_hex(data)}.{client.client_id}", bytes(len(data)))
        refused = await client.send("POST", f"/v1/blobs/{sha256_hex(data)}/arrival")
        assert problem(refused) == "blob-mismatch"
        await client.api.put_blob(sha256_hex(data), spooled(data))
    assert len(verdicts(run)) == 1


async def lease(run: Served, token: str, wait_s: float = 5.0) -> dict[str, Any]:
    """Leases a check by hand."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = await run.http.post(f"{run.run_url}/checks", params={"wait_s": wait_s}, headers=headers)
    return {} if answer.status_code == 204 else dict(answer.json())


@thinned(
    "answer",
    [
        *(s3_error(status, "Injected") for status in (403, 404, 412, 500, 503)),
        HttpReply(200, b"", announced_bytes=10, hangs=True),
        HttpReply(206, b"cut o", announced_bytes=10),
        HttpReply(200, bytes(1_000_000)),
    ],
    ids=lambda answer: "hangs" if answer.hangs else f"{answer.status}-{len(answer.body)}",
)
async def test_check_that_cannot_be_read_goes_back_to_the_coordinator(
    run: Served, clients: list[WireClient], door: S3Door, monkeypatch: pytest.MonkeyPatch, answer: HttpReply
) -> None:
    monkeypatch.setattr(leases, "REST_S", 0.01)
    monkeypatch.setattr(stored_reads, "RETRY_S", 0.01)
    monkeypatch.setattr(stored_reads, "READ_TIMEOUT_S", 0.2)
    said: list[str] = []
    door.fault = lambda r: answer if r.is_signed_url and r.method == "GET" else None
    async with checker(run, said):
        await deliver(clients[0], clients[0].result(REPLICA, DIFFERENCE))
    assert verdicts(run) == [("coordinator", True)]
    assert said == []


async def test_token_of_a_checker_opens_nothing_else(run: Served, clients: list[WireClient]) -> None:
    token = await token_of(run)
    headers = {"Authorization": f"Bearer {token}"}
    assert problem(await run.http.post(f"{run.run_url}/pause", headers=headers)) == "forbidden"
    assert problem(await run.http.get(f"{run.run_url}/clients/me", headers=headers)) == "unauthorized"
    blob = run.service.run.models.checkpoints[0].blob_sha256
    assert problem(await run.http.get(f"/v1/blobs/{blob}", headers=headers)) == "unauthorized"
    for wrong in (clients[0].token, ADMIN, "nonsense"):
        refused = await run.http.post(f"{run.run_url}/checks", headers={"Authorization": f"Bearer {wrong}"})
        assert problem(refused) == "unauthorized"


async def test_run_whose_blobs_are_on_the_disk_has_no_work_for_checkers(coordinator: Served) -> None:
    headers = {"Authorization": f"Bearer {await token_of(coordinator)}"}
    assert problem(await coordinator.http.post(f"{coordinator.run_url}/checks", headers=headers)) == "not-now"


@pytest.mark.nightly
async def test_metrics_say_what_arrived(
    run: Served, clients: list[WireClient], bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    monkeypatch.setattr(given, "LEASE_S", LEASE_S)
    metrics = measured(run)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"epochal_coordinator_{name}", labels)

    wrong, right = (client.result(REPLICA, DIFFERENCE) for client in clients)
    await clients[0].commit(wrong)
    await clients[0].send("POST", f"/v1/blobs/{sha256_hex(wrong)}/grant")
    await obstore.put_async(bucket, f"{PREFIX}/incoming/{sha256_hex(wrong)}.{clients[0].client_id}", bytes(len(wrong)))
    assert problem(await clients[0].send("POST", f"/v1/blobs/{sha256_hex(wrong)}/arrival")) == "blob-mismatch"
    assert value("blob_arrivals_total", verdict="blob-mismatch") == 1
    assert value("blob_arrivals_total", verdict="counted") is None

    token, said = await token_of(run), list[str]()
    async with asyncio.TaskGroup() as tasks:
        dying = tasks.create_task(lease(run, token))
        await run.handlers.arrivals.checks.asked.wait()
        delivering = tasks.create_task(deliver(clients[1], right))
        assert await dying
        async with checker(run, said):
            await delivering
    assert value("blob_arrivals_total", verdict="counted") == 1
    assert value("checks_waiting") == 0
