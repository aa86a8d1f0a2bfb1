"""The names that clients choose, over HTTP: shown as they are, changed at a join, refused where they could mislead."""

from dataclasses import replace

import pytest

from epochal.state.messages.requests import JoinRequest
from epochal.state.wire import to_plain
from tests.support.drive.served import Served, WireClient, problem


async def named(client: WireClient, name: str | None, software: str | None = "0.9.0") -> JoinRequest:
    return replace(await client.join_request(), name=name, software=software)


async def shown(coordinator: Served) -> list[tuple[str, str]]:
    status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
    return [(member["name"], member["software"]) for member in status["members"]]


async def test_name_and_version_are_shown_and_change_at_a_join(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    assert (await client.send("POST", "/clients", await named(client, "LAB <b>"))).status_code == 200
    assert await shown(coordinator) == [("LAB <b>", "0.9.0")]
    assert (await client.send("POST", "/clients", await named(client, "LAB 2", None))).status_code == 200
    assert await shown(coordinator) == [("LAB 2", "")]
    assert (await client.send("POST", "/clients", await named(client, None))).status_code == 200
    assert await shown(coordinator) == [("", "0.9.0")]


@pytest.mark.parametrize("name", ["", "a\x1b[2J", "a\u202eb", "a\u2029b", "x" * 65, "e\u0301"])
async def test_misleading_name_is_refused_and_named(coordinator: Served, name: str) -> None:
    client = WireClient(coordinator, 1)
    body = to_plain(await named(client, None)) | {"name": name}
    answer = await client.send("POST", "/clients", body)
    assert problem(answer) == "invalid-body"
    detail = answer.json()["detail"]
    assert "name: " in detail
    assert "allowed: 1 to 64 letters" in detail
    assert detail.isprintable()
    assert await shown(coordinator) == []


async def test_key_in_use_names_the_client_that_uses_it(coordinator: Served) -> None:
    client = WireClient(coordinator, 1)
    first = replace(await named(client, "LAB"), instance="aa")
    assert (await client.send("POST", "/clients", first)).status_code == 200
    second = await client.send("POST", "/clients", replace(await client.join_request(), instance="bb"))
    assert problem(second) == "key-in-use"
    assert f"{client.client_id} ('LAB')" in second.json()["detail"]


UNSEEN = ["a\x1b[2Jb", "a\u202eb", "a\nb", "a\x00b"]


@pytest.mark.parametrize("text", UNSEEN)
async def test_trainer_or_codec_that_nobody_sees_is_refused_and_named(coordinator: Served, text: str) -> None:
    client = WireClient(coordinator, 1)
    body = to_plain(await named(client, None))
    for field, value in (("trainer", text), ("codecs", [text])):
        answer = await client.send("POST", "/clients", body | {"capabilities": body["capabilities"] | {field: value}})
        assert problem(answer) == "invalid-body"
        assert f"capabilities.{field}" in answer.json()["detail"]
        assert answer.json()["detail"].isprintable()


@pytest.mark.parametrize("text", UNSEEN)
async def test_report_with_a_text_that_nobody_sees_is_refused(coordinator: Served, text: str) -> None:
    client = WireClient(coordinator, 1)
    await client.join()
    failure = {"step": 1, "attempt": 0, "kind": "trainer", "message": text, "batch_id": None}
    assert problem(await client.send("POST", "/failures", failure)) == "invalid-body"
    ready = {"step": 0, "replica_digest": "0" * 64, "data_fingerprint": text}
    assert problem(await client.send("POST", "/ready", ready)) == "invalid-body"
    described = ready | {"data_fingerprint": "f", "dataset": {"kind": text}}
    assert problem(await client.send("POST", "/ready", described)) == "invalid-body"
