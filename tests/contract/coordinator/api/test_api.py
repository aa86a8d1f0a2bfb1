"""The REST service, route by route, with the real application over a real run in memory."""

import asyncio
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from starlette.routing import Route

from epochal.coordinator.api.app import create_app
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S
from epochal.runtime.http.bodies import MAX_BODY_BYTES
from epochal.state.documents import MAX_RUN_DOCUMENT_BYTES, Roster, RunDocument, WorkList
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256, parse_document, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, phase, problem, training


async def test_runs_lists_the_one_run(coordinator: Served) -> None:
    assert (await coordinator.http.get("/v1/runs")).json() == {"runs": ["test-run"]}


async def test_first_request_finds_each_route_put_together(coordinator: Served) -> None:
    routes = create_app(coordinator.handlers, "test").routes
    assert [route for route in routes if not isinstance(route, Route)] == [], "a router puts its routes together later"


async def test_run_document_is_small_and_names_documents_by_their_digests(coordinator: Served) -> None:
    await training(coordinator)
    answer = await coordinator.http.get(coordinator.run_url)
    document = parse_document(RunDocument, answer.content)
    assert len(answer.content) <= MAX_RUN_DOCUMENT_BYTES
    assert answer.headers["etag"] == f'"{document.lineage}-{document.version}"'
    assert document.round is not None
    for place, digest, kind in (
        ("rosters", document.round.roster_sha256, Roster),
        ("work", document.round.work_sha256, WorkList),
        ("config", document.config_sha256, None),
    ):
        found = await coordinator.http.get(f"{coordinator.run_url}/{place}/{digest}")
        assert sha256_hex(found.content) == digest
        assert "immutable" in found.headers["cache-control"]
        if kind is not None:
            parse_document(kind, found.content)


async def test_run_document_waits_for_news_and_answers_304_without(coordinator: Served) -> None:
    first = await coordinator.http.get(coordinator.run_url)
    version = first.json()["version"]
    nothing = await coordinator.http.get(coordinator.run_url, params={"after": version, "wait_s": 0.01})
    assert nothing.status_code == 304
    assert nothing.headers["etag"] == first.headers["etag"]
    async with asyncio.timeout(4), asyncio.TaskGroup() as tasks:  # less than the reader waits if nothing wakes it
        news = {"after": version, "wait_s": 5, "lineage": first.json()["lineage"]}
        waiting = tasks.create_task(coordinator.http.get(coordinator.run_url, params=news))
        for _ in range(50):  # until it waits
            await asyncio.sleep(0)
        for number in (1, 2):
            await WireClient(coordinator, number).join()
        answer = await waiting
    assert answer.json()["version"] > version


@pytest.mark.nightly
async def test_run_document_older_than_the_one_that_is_known_is_never_the_answer(coordinator: Served) -> None:
    known = (await coordinator.http.get(coordinator.run_url)).json()["version"] + 100
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(coordinator.http.get(coordinator.run_url, params={"after": known, "wait_s": 5}))
        for _ in range(50):  # until it waits
            await asyncio.sleep(0)
        for number in (1, 2):
            await WireClient(coordinator, number).join()
        await phase(coordinator, RunState.WARMUP)
        answer = await waiting
    assert answer.status_code == 304


async def test_run_document_of_another_lineage_is_answered_at_once(coordinator: Served) -> None:
    params: dict[str, int | str] = {"after": 10**9, "wait_s": 60, "lineage": "of a backup"}
    async with asyncio.timeout(BOUND_S):
        answer = await coordinator.http.get(coordinator.run_url, params=params)
    assert answer.status_code == 200


@pytest.mark.parametrize("query", ["after=x", "after=-2", "wait_s=nan", "wait_s=-1"])
async def test_run_document_with_a_bad_parameter_is_refused(coordinator: Served, query: str) -> None:
    assert problem(await coordinator.http.get(f"{coordinator.run_url}?{query}")) == "invalid-parameter"


async def test_unknown_run_route_and_document_are_not_found(coordinator: Served) -> None:
    assert problem(await coordinator.http.get("/v1/runs/other")) == "unknown-run"
    assert problem(await coordinator.http.get("/v1/nothing")) == "not-found"
    assert problem(await coordinator.http.get(f"{coordinator.run_url}/rosters/{'0' * 64}")) == "not-found"
    assert problem(await coordinator.http.get(f"{coordinator.run_url}/rounds/7/outcome")) == "not-found"


async def test_join_gives_a_session_and_a_replayed_one_is_refused(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    request = await client.join_request()
    first = await client.send("POST", "/clients", request)
    assert first.status_code == 200
    assert first.json()["client_id"] == client.client_id
    assert problem(await client.send("POST", "/clients", request)) == "nonce-consumed"


async def test_two_joins_of_one_key_at_once_leave_one_session(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    requests = [await client.join_request() for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        joins = [tasks.create_task(client.send("POST", "/clients", request)) for request in requests]
    refused, accepted = sorted((join.result() for join in joins), key=lambda answer: answer.status_code)[::-1]
    assert problem(refused) == "unauthorized"
    assert accepted.status_code == 200
    answer = await client.send("GET", "/clients/me", token=accepted.json()["session_token"])
    assert answer.status_code == 200


async def test_join_with_a_wrong_signature_or_another_protocol_is_refused(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    request = await client.join_request()
    unsigned = replace(request, signature="0" * 128)
    assert problem(await client.send("POST", "/clients", unsigned)) == "unauthorized"
    later = replace(request, capabilities=replace(request.capabilities, protocol=99))
    assert problem(await client.send("POST", "/clients", later)) == "unsupported-protocol"


async def test_reports_without_a_valid_token_are_unauthorized(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    assert problem(await client.send("GET", "/clients/me")) == "unauthorized"
    assert problem(await client.send("GET", "/clients/me", token="a.b.c")) == "unauthorized"
    await client.join()
    assert problem(await client.send("GET", "/clients/me", token=client.ticket)) == "unauthorized"
    first = client.token
    await client.join()
    assert problem(await client.send("GET", "/clients/me", token=first)) == "unauthorized"
    assert (await client.send("GET", "/clients/me")).json()["client_id"] == client.client_id


async def test_expired_token_is_unauthorized(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    long_ago = coordinator.service.now_s() - SESSION_LIFETIME_S - 1
    expired = coordinator.handlers.tokens.session_token(client.client_id, 1, long_ago)
    assert problem(await client.send("GET", "/clients/me", token=expired)) == "unauthorized"


async def test_renewed_token_and_withdrawal(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    renewed = await client.send("POST", "/clients/me/token")
    assert (await client.send("GET", "/clients/me", token=renewed.json()["session_token"])).status_code == 200
    assert (await client.send("DELETE", "/clients/me")).status_code == 204
    assert problem(await client.send("GET", "/clients/me")) == "unauthorized"


async def test_token_of_a_member_that_left_stays_invalid_after_another_join(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    earlier = client.token
    assert (await client.send("DELETE", "/clients/me")).status_code == 204
    await client.join()
    assert problem(await client.send("GET", "/clients/me", token=earlier)) == "unauthorized"
    assert (await client.send("GET", "/clients/me")).status_code == 200


async def test_body_above_the_limit_is_refused(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    answer = await client.send("POST", "/clients/challenge", b'{"public_key": "' + b"a" * MAX_BODY_BYTES + b'"}')
    assert problem(answer) == "body-too-large"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"public_key": 5}', b'{"public_key": "ab"}', b'{"unknown": 1}', b"\xff"]
)
async def test_malformed_body_is_refused_with_the_field_named(coordinator: Served, body: bytes) -> None:
    assert problem(await WireClient(coordinator, 1).send("POST", "/clients/challenge", body)) == "invalid-body"


async def test_result_is_committed_delivered_checked_and_listed(coordinator: Served) -> None:
    client, other = await training(coordinator)
    data = client.result(REPLICA, DIFFERENCE)
    answer = await client.commit(data)
    assert answer.json()["committed_sha256"] == sha256_hex(data)
    assert (await client.commit(data)).json() == answer.json()
    assert (await client.put_blob(data)).status_code == 201
    assert (await client.put_blob(data)).status_code == 201
    assert (await client.send("GET", "/clients/me")).json()["result_verified"] is True
    page = (await client.send("GET", "/rounds/1/results?attempt=0&after=0&wait_s=0")).json()
    assert [item["result_sha256"] for item in page["results"]] == [sha256_hex(data)]
    assert page["complete"] is False
    assert problem(await other.send("GET", "/rounds/9/results?attempt=0")) == "stale-round"
    whole = await client.send("GET", f"/v1/blobs/{sha256_hex(data)}")
    assert whole.content == data


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-9", (206, 0, 10)),
        ("bytes=10-", (206, 10, None)),
        ("bytes=-7", (206, -7, None)),
        ("bytes=5-100000000", (206, 5, None)),
        ("bytes=0-1,3-4", (200, 0, None)),
        ("lines=1-2", (200, 0, None)),
    ],
)
async def test_blob_ranges_are_served(coordinator: Served, header: str, expected: tuple[int, int, int | None]) -> None:
    (client, _), (status, start, stop) = await training(coordinator), expected
    checkpoint = (await client.send("GET", "/checkpoints/latest")).json()
    url = f"/v1/blobs/{checkpoint['blob_sha256']}"
    whole = (await client.send("GET", url)).content
    part = await coordinator.http.get(url, headers={"Authorization": f"Bearer {client.token}", "Range": header})
    assert part.status_code == status
    assert part.content == whole[start:stop]
    assert problem(await coordinator.http.get(url)) == "unauthorized"


async def test_operator_reads_checkpoints_that_are_held(coordinator: Served) -> None:
    (client, _) = await training(coordinator)
    latest = (await client.send("GET", "/checkpoints/latest")).json()
    held = await coordinator.http.get(f"{coordinator.run_url}/checkpoints")
    assert held.json() == {"checkpoints": [latest]}
    url = f"/v1/blobs/{latest['blob_sha256']}"
    found = await client.send("GET", url, token=ADMIN)
    assert sha256_hex(found.content) == latest["blob_sha256"]
    assert problem(await client.send("GET", url, token="a guess")) == "unauthorized"
    assert problem(await client.send("PUT", url, found.content, token=ADMIN)) == "unauthorized"


async def test_blob_that_nobody_announced_or_another_announced_is_refused(coordinator: Served) -> None:
    client, other = await training(coordinator)
    data = client.result(REPLICA, DIFFERENCE)
    assert problem(await client.put_blob(data)) == "not-committed"
    await client.commit(data)
    assert problem(await other.put_blob(data)) == "not-committed"


async def test_blob_that_does_not_match_its_commitment_is_refused(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    data = client.result(REPLICA, DIFFERENCE)
    await client.commit(data)
    url = f"/v1/blobs/{sha256_hex(data)}"
    assert problem(await client.send("PUT", url, data[:-1] + b"\x00")) == "blob-mismatch"
    assert problem(await client.send("PUT", url, data + b"more")) == "blob-too-large"
    assert (await client.put_blob(data)).status_code == 201


def spoiled(client: WireClient, other: WireClient, how: str) -> bytes:
    match how:
        case "nan":
            return client.result(REPLICA, {"w": np.full((2, 3), math.nan, np.float32)})
        case "huge":
            return client.result(REPLICA, {"w": np.full((2, 3), 1e9, np.float32)})
        case "shape":
            return client.result(REPLICA, {"w": np.zeros((3, 3), np.float32)})
        case "name":
            return client.result(REPLICA, {"v": np.zeros((2, 3), np.float32)})
        case "another client":
            return other.result(REPLICA, DIFFERENCE)
        case "another round":
            return client.result(REPLICA, DIFFERENCE, step=7)
        case _:
            return b"no safetensors"


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("nan", "scale"),
        ("huge", "max_abs"),
        ("shape", "layout"),
        ("name", "layout"),
        ("another client", "client_id"),
        ("another round", "step"),
        ("garbage", "header"),
    ],
)
async def test_result_that_breaks_a_rule_is_refused_by_its_name(coordinator: Served, how: str, rule: str) -> None:
    client, other = await training(coordinator)
    data = spoiled(client, other, how)
    assert (await client.commit(data)).status_code == 200
    answer = await client.put_blob(data)
    assert problem(answer) == "result-invalid"
    assert answer.json()["rule"] in (rule, "size")
    standing = (await client.send("GET", "/clients/me")).json()
    assert standing["result_rejected"] == answer.json()["rule"]
    assert problem(await client.commit(client.result(REPLICA, DIFFERENCE))) == "already-committed"


async def test_result_larger_than_the_model_implies_is_refused_before_it_is_sent(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    assert problem(await client.commit(b"x" * 100_000)) == "blob-too-large"


async def test_report_for_a_round_that_is_over_is_refused_by_name(coordinator: Served) -> None:
    client, _ = await training(coordinator)
    late = ResultCommitment(5, 0, Sha256("0" * 64), 5, ResultMetrics(loss=None, tokens=0, train_s=0.0))
    assert problem(await client.send("POST", "/results", late)) == "late-result"


async def test_every_operator_route_needs_the_admin_token(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    paths = (await coordinator.http.get("/openapi.json")).json()["paths"]
    routes = [
        (method.upper(), path.removeprefix("/v1/runs/{run_id}").replace("{client_id}", client.client_id))
        for path, methods in paths.items()
        for method, route in methods.items()
        if route.get("security") == [{"admin token": []}]
    ]
    assert len(routes) > 15
    for method, path in routes:
        place = re.sub("{.*?}", "ab" * 32, path)
        nobodys = await coordinator.http.request(method, coordinator.run_url + place)
        assert problem(nobodys) == "unauthorized", place
        assert nobodys.headers["www-authenticate"] == "Bearer"
        assert problem(await client.send(method, place)) == "forbidden", place
        assert problem(await client.send(method, place, token="wrong")) == "forbidden", place


async def test_operator_pauses_resumes_and_ejects(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    assert (await client.send("POST", "/pause", token=ADMIN)).status_code == 204
    assert coordinator.service.run.clock.phase is RunState.PAUSED
    assert (await client.send("POST", "/resume", token=ADMIN)).status_code == 204
    assert (await client.send("POST", f"/clients/{client.client_id}/eject", token=ADMIN)).status_code == 204
    assert problem(await client.send("POST", "/clients", await client.join_request())) == "ejected"
    assert problem(await client.send("POST", "/clients/nobody/eject", token=ADMIN)) == "not-found"


async def test_quarantine_is_public_and_release_names_what_is_not_in_it(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    assert (await client.send("GET", "/quarantine")).json() == {"quarantined": [], "waiting": []}
    for batches in (None, [{"start": 1, "end": 2}]):
        refused = await client.send("POST", "/quarantine/release", {"batches": batches}, token=ADMIN)
        assert problem(refused) == "not-found"
    assert problem(await client.send("POST", "/quarantine/release", {}, token=ADMIN)) == "invalid-body"


async def test_status_health_readiness_metrics_and_description_answer(coordinator: Served) -> None:
    await training(coordinator)
    status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
    assert (status["member_count"], status["ready_count"], status["run_state"]) == (2, 2, "RoundTrain")
    assert (await coordinator.http.get("/healthz")).text == "ok\n"
    assert (await coordinator.http.get("/readyz")).status_code == 200
    metrics = (await coordinator.http.get("/metrics")).text
    assert "\nepochal_run_members 2.0\n" in metrics
    assert 'epochal_run_phase{phase="RoundTrain"} 1.0' in metrics
    assert (await coordinator.http.get("/openapi.json")).status_code == 200
    shown = await coordinator.http.get("/docs")
    assert shown.headers["content-type"].startswith("text/html")
    assert shown.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in shown.headers["content-security-policy"]
    assert "/openapi.json" in shown.text
