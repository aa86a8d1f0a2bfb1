"""The REST service at its edges: what the framework refuses by itself, bounds on waiting, descriptions, counters."""

import asyncio
import re
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from docs import errors_page
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.machine.run import parse_snapshot, snapshot_bytes
from epochal.coordinator.run.long_polls import POOLS, ReaderKind
from epochal.runtime.http.bodies import BODY_PIECE_TIMEOUT_S, MESSAGE_TIMEOUT_S, read_message
from epochal.state.errors import Refused
from epochal.state.messages.requests import Attestation, ReadyReport
from epochal.state.model.replica import replica_digest
from epochal.state.refusals import Refusal
from epochal.state.wire import sha256_hex
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, problem, training
from tests.support.simulate.virtual_time import run_virtually


async def test_what_the_framework_refuses_is_a_problem_too(coordinator: Served) -> None:
    http, run = coordinator.http, coordinator.run_url
    assert problem(await http.get(f"{run}/rounds/first/outcome")) == "invalid-parameter"
    for path, method, allowed in (
        ("/ready", "PUT", "POST"),
        ("", "POST", "GET"),
        ("/clients/me", "POST", "DELETE, GET"),
        ("/clients", "HEAD", "POST"),
        ("/replays/scores", "OPTIONS", "POST"),
    ):
        answer = await http.request(method, run + path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == allowed
    assert problem(await http.put(f"{run}/ready")) == "method-not-allowed"
    assert problem(await http.get("/v2/runs")) == "not-found"


@pytest.mark.parametrize(
    "query", ["after=1_0", "after=-2", "after=", "after=1&after=1", "wait_s=nan", "wait_s=", "lineage="]
)
async def test_parameter_that_is_not_one_value_is_refused(coordinator: Served, query: str) -> None:
    assert problem(await coordinator.http.get(f"{coordinator.run_url}?{query}")) == "invalid-parameter"


async def test_key_given_twice_in_a_body_is_refused(coordinator: Served) -> None:
    body = b'{"public_key":"%s","public_key":"%s"}' % (b"a" * 64, b"b" * 64)
    answer = await coordinator.http.post(f"{coordinator.run_url}/clients/challenge", content=body)
    assert problem(answer) == "invalid-body"
    assert "'public_key' occurs twice" in answer.json()["detail"]


async def test_range_beyond_the_blob_says_how_long_it_is(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    checkpoint = coordinator.service.run.models.checkpoint
    assert checkpoint is not None
    headers = {"Authorization": f"Bearer {client.token}", "Range": f"bytes={checkpoint.size_bytes}-"}
    answer = await coordinator.http.get(f"/v1/blobs/{checkpoint.blob_sha256}", headers=headers)
    assert problem(answer) == "range-not-satisfiable"
    assert answer.headers["content-range"] == f"bytes */{checkpoint.size_bytes}"


def test_message_that_drips_is_given_up_when_its_time_is_over() -> None:
    """Each byte comes in time for a piece; together they never end."""
    held_s = 0.0

    async def drip() -> dict[str, Any]:
        await asyncio.sleep(BODY_PIECE_TIMEOUT_S - 1)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def main() -> None:
        nonlocal held_s
        request = Request({"type": "http", "method": "POST", "headers": []}, drip)
        with pytest.raises(Refused) as refused:
            await read_message(request, ReadyReport)
        assert refused.value.kind == "body-timeout"
        assert f"{MESSAGE_TIMEOUT_S:g} s" in refused.value.message
        held_s = asyncio.get_running_loop().time()

    run_virtually(main())
    assert held_s == MESSAGE_TIMEOUT_S


async def test_metrics_count_answers_by_route_and_status_class(coordinator: Served) -> None:
    await coordinator.http.get("/nowhere")
    await coordinator.http.get(coordinator.run_url)
    await coordinator.http.get("/v1/runs/other")
    text = (await coordinator.http.get("/metrics")).text
    for status in ("2xx", "4xx"):
        labels = f'method="GET",route="{RUN}",status="{status}"'
        assert f"epochal_http_request_duration_seconds_count{{{labels}}} 1.0" in text
    assert 'route="(none)",status="4xx"} 1.0' in text


async def test_member_cannot_wait_more_often_than_its_bound(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    version = coordinator.service.published.version
    answers: list[httpx.Response] = []

    async def wait() -> None:
        answers.append(await client.send("GET", f"?after={version + 100}&wait_s=0.3"))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(POOLS[ReaderKind.MEMBER].each + 1):
            tasks.create_task(wait())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert [problem(answer) for answer in refused] == ["overloaded"]
    assert refused[0].headers["retry-after"]


async def test_body_that_breaks_off_is_refused_quietly(coordinator: Served, caplog: pytest.LogCaptureFixture) -> None:
    messages = iter([{"type": "http.request", "body": b'{"public', "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    path = f"{coordinator.run_url}/clients/challenge"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "http_version": "1.1"}
    scope["headers"] = [(b"host", b"coordinator")]
    transport = coordinator.http._transport
    assert isinstance(transport, httpx.ASGITransport)
    await transport.app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not caplog.records


async def test_waiting_readers_are_answered_at_once_when_the_service_stops(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    version = coordinator.service.published.version
    async with asyncio.timeout(3), asyncio.TaskGroup() as tasks:
        document = tasks.create_task(client.send("GET", f"?after={version + 100}&wait_s=6"))
        results = tasks.create_task(client.send("GET", "/rounds/1/results?attempt=0&after=0&wait_s=6"))
        for _ in range(50):  # until both wait
            await asyncio.sleep(0)
        coordinator.service.readers.release()
    assert document.result().status_code == 304
    assert results.result().json()["results"] == []


def test_documentation_lists_every_kind_of_problem_with_its_status() -> None:
    listed = dict(re.findall(r"^### ([a-z-]+)\n\nStatus (\d{3})\. ", errors_page.body(), re.MULTILINE))
    assert listed == {kind.value: str(kind.status) for kind in Refusal if kind is not Refusal.UNKNOWN}


async def take_round(clients: list[WireClient], metrics: bytes) -> list[httpx.Response]:
    """Let every client commit to a result with these metrics, deliver, and attest; return the commitments' answers."""
    current = clients[0].served.service.run.round
    assert current is not None
    answers = []
    for client in clients:
        data = client.result(REPLICA, DIFFERENCE)
        fields = (current.number.step, current.number.attempt, sha256_hex(data).encode(), len(data), metrics)
        body = b'{"step":%d,"attempt":%d,"result_sha256":"%s","size_bytes":%d,"metrics":%s}' % fields
        answers.append(await client.send("POST", "/results", body))
        if answers[-1].is_success:
            assert (await client.put_blob(data)).status_code == 201
    if all(answer.is_success for answer in answers):
        attestation = Attestation(current.number.step, current.number.attempt, replica_digest(REPLICA), "3")
        for client in clients:
            assert (await client.send("POST", "/attestations", attestation)).status_code == 200
    return answers


async def test_claimed_tokens_beyond_any_count_are_refused(coordinator: Served) -> None:
    clients = await training(coordinator)
    metrics = b'{"loss":1.5,"tokens":1%s,"train_s":1.0}' % (b"0" * 400)
    assert [problem(answer) for answer in await take_round(clients, metrics)] == ["invalid-body"] * 2


async def test_claimed_losses_without_a_finite_mean_leave_status_readable(coordinator: Served) -> None:
    clients = await training(coordinator)
    answers = await take_round(clients, b'{"loss":1e308,"tokens":1000,"train_s":1.0}')
    assert [answer.status_code for answer in answers] == [200, 200]
    run = coordinator.service.run
    assert run.progress.step == 2
    assert (await coordinator.http.get(f"{coordinator.run_url}/status")).status_code == 200
    assert parse_snapshot(snapshot_bytes(run)) == run


async def test_status_is_made_once_for_all_who_ask_until_the_run_changes(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    bodies = {(await client.send("GET", "/status")).content for _ in range(3)}
    assert len(bodies) <= 2, "one may be older than the quarter of a second for which it is shown"
    assert (await client.send("DELETE", "/clients/me")).status_code == 204
    assert (await client.send("GET", "/status")).json()["member_count"] == 0
