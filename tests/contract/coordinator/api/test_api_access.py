"""Who may join and when the run ends, over HTTP: what an operator may say, who may look, and what is shown."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from epochal.state.wire import sha256_hex
from tests.support.data.states import state_file
from tests.support.drive.served import ADMIN, Served, WireClient, problem, served


@pytest.fixture
async def invited() -> AsyncIterator[Served]:
    async with served(state_file(access__mode="invitations")) as coordinator:
        await coordinator.insight.history.is_read.wait()
        yield coordinator


@pytest.fixture
async def keyed() -> AsyncIterator[Served]:
    async with served(state_file(access__mode="keys")) as coordinator:
        await coordinator.insight.history.is_read.wait()
        yield coordinator


async def ask(
    coordinator: Served, method: str, place: str, body: Any = None, token: str | None = ADMIN
) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = coordinator.run_url + place
    return await coordinator.http.request(method, url, json=body, headers=headers)


async def joins(client: WireClient, code: str | None = None) -> str:
    answer = await client.send("POST", "/clients", await client.join_request(code))
    return "joined" if answer.status_code == 200 else str(problem(answer))


async def test_invitation_is_told_once_and_admits_its_clients(invited: Served) -> None:
    made = (await ask(invited, "POST", "/invitations", {"uses": 2, "expires_in_s": 60})).json()
    assert made["id"] == sha256_hex(made["code"].encode())
    clients = [WireClient(invited, number) for number in (1, 2, 3)]
    assert await joins(clients[0]) == "access-denied"
    assert [await joins(client, made["code"]) for client in clients] == ["joined", "joined", "access-denied"]
    listed = await ask(invited, "GET", "/invitations")
    (view,) = listed.json()["invitations"]
    assert (view["id"], view["uses"], view["used"], view["expired"]) == (made["id"], 2, 2, False)
    assert made["code"] not in listed.text
    assert (await ask(invited, "DELETE", f"/invitations/{made['id']}")).status_code == 204
    assert problem(await ask(invited, "DELETE", f"/invitations/{made['id']}")) == "not-found"
    assert (await ask(invited, "GET", "/invitations")).json()["invitations"] == []


async def test_challenge_of_one_that_joins_is_refused_like_its_join(invited: Served) -> None:
    client, made = WireClient(invited, 1), (await ask(invited, "POST", "/invitations", {})).json()
    asked = {"public_key": client.key.public_key, "joins": True}
    missing = await ask(invited, "POST", "/clients/challenge", asked)
    wrong = await ask(invited, "POST", "/clients/challenge", asked | {"invitation_sha256": "ab" * 32})
    assert (problem(missing), problem(wrong)) == ("access-denied", "access-denied")
    assert "is it for this run?" in wrong.text
    right = asked | {"invitation_sha256": sha256_hex(made["code"].encode())}
    assert (await ask(invited, "POST", "/clients/challenge", right)).is_success
    assert (await ask(invited, "POST", "/clients/challenge", {"public_key": client.key.public_key})).is_success


async def test_code_of_an_invitation_is_kept_nowhere(invited: Served) -> None:
    made = (await ask(invited, "POST", "/invitations", {})).json()
    assert await joins(WireClient(invited, 1), made["code"]) == "joined"
    assert invited.store is not None
    kept = [segment async for segment in invited.store.journal.history()]
    bodies = [record.body for segment in kept for record in segment.records]
    assert bodies
    assert made["id"].encode() in b"".join(bodies)
    assert made["code"].encode() not in b"".join(bodies)


async def test_code_and_token_are_in_no_log_and_no_answer(invited: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = (await ask(invited, "POST", "/invitations", {})).json()
    assert await joins(WireClient(invited, 1), made["code"]) == "joined"
    assert await joins(WireClient(invited, 2), made["code"]) == "access-denied"
    assert problem(await ask(invited, "POST", "/pause", token="X" + ADMIN)) == "forbidden"
    assert (await ask(invited, "POST", "/pause")).is_success
    places = ["/status", "/actions", "/members", "/join", "/history", "/invitations", "/access"]
    answers = [await ask(invited, "GET", place) for place in places]
    assert [answer.status_code for answer in answers] == [200] * len(places)
    seen = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    seen += "".join(f"{answer.url}{answer.headers}{answer.text}" for answer in answers)
    assert "operator_acted" in seen
    assert made["code"] not in seen
    assert ADMIN not in seen


@pytest.mark.parametrize("body", [{"uses": 0}, {"uses": 10_001}, {"expires_in_s": 0}, {"expires_in_s": 1e12}, {"x": 1}])
async def test_odd_invitation_is_refused(invited: Served, body: dict[str, Any]) -> None:
    assert problem(await ask(invited, "POST", "/invitations", body)) == "invalid-body"


async def test_key_is_admitted_listed_and_removed(keyed: Served) -> None:
    client = WireClient(keyed, 1)
    key = client.key.public_key
    assert await joins(client) == "access-denied"
    assert (await ask(keyed, "PUT", f"/access/{key}")).status_code == 204
    assert await joins(client) == "joined"
    listed = (await ask(keyed, "GET", "/access")).json()
    expected = {"public_key": key, "client_id": client.client_id, "source": "command", "member": True, "name": ""}
    assert listed == {"mode": "keys", "keys": [expected], "removed": []}
    assert (await ask(keyed, "DELETE", f"/access/{key}")).status_code == 204
    assert client.client_id not in keyed.service.run.members
    assert await joins(client) == "access-denied"


@pytest.mark.parametrize("key", ["x", "AB" * 32, "ab" * 31])
async def test_odd_key_is_refused_with_what_is_allowed(keyed: Served, key: str) -> None:
    answer = await ask(keyed, "PUT", f"/access/{key}")
    assert problem(answer) == "invalid-parameter"
    assert "64 lowercase hex characters" in answer.json()["detail"]


async def test_run_ends_after_the_step_that_is_named(coordinator: Served) -> None:
    assert (await ask(coordinator, "PUT", "/finish", {"after_step": 2})).status_code == 204
    status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
    assert (status["finish_after"], status["total_steps"]) == (2, 2)
    assert problem(await ask(coordinator, "PUT", "/finish", {"after_step": 9})) == "not-now"
    assert problem(await ask(coordinator, "PUT", "/finish", {"after_step": -1})) == "invalid-body"
    assert (await ask(coordinator, "PUT", "/finish", {"after_step": None})).status_code == 204
    status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
    assert (status["finish_after"], status["total_steps"]) == (None, 4)
