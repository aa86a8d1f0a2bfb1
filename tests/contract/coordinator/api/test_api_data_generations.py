"""The routes by which an operator appends files to the run's data."""

from typing import Any

import httpx

from epochal.state.generations import DataHistory
from epochal.state.phase_names import RunState
from epochal.state.wire import parse_document
from tests.support.drive.served import ADMIN, REPLICA, Served, WireClient, phase, problem

NOW = {"fingerprint": "ab" * 32, "sample_count": 100, "file_count": 2}
GROWN = {"fingerprint": "cd" * 32, "sample_count": 150, "file_count": 3}


async def put(coordinator: Served, appended: Any, token: str = ADMIN) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{coordinator.run_url}/data-generations"
    return await coordinator.http.put(address, json={"appended": appended}, headers=headers)


async def shown(coordinator: Served) -> DataHistory:
    answer = await coordinator.http.get(f"{coordinator.run_url}/data-generations")
    return parse_document(DataHistory, answer.content)


async def running(coordinator: Served) -> list[WireClient]:
    clients = [WireClient(coordinator, number) for number in (1, 2)]
    for client in clients:
        await client.join()
    await phase(coordinator, RunState.WARMUP)
    for client in clients:
        await client.ready(REPLICA, str(NOW["fingerprint"]))
    return clients


async def test_append_is_in_the_configuration_that_clients_read(coordinator: Served) -> None:
    await running(coordinator)
    assert (await shown(coordinator)).generations == ()
    before = coordinator.service.published.document.config_sha256
    answer = await put(coordinator, {"grown_from": NOW, "grown_to": GROWN})
    assert answer.status_code == 200
    old, new = parse_document(DataHistory, answer.content).generations
    assert (old.first_data_index, new.first_data_index % 100) == (0, 0)
    assert await shown(coordinator) == DataHistory((old, new))
    digest = coordinator.service.published.document.config_sha256
    assert digest != before
    read = await coordinator.http.get(f"{coordinator.run_url}/config/{digest}")
    assert [found["fingerprint"] for found in read.json()["data_generations"]] == [old.fingerprint, new.fingerprint]
    status = coordinator.insight.status()
    assert (status.data_generations, status.data_decided_by) == ((old, new), "append")
    assert (await put(coordinator, None)).json() == {"generations": []}
    assert coordinator.service.published.document.config_sha256 == before


async def test_append_needs_the_admin_token_and_what_has_grown(coordinator: Served) -> None:
    clients = await running(coordinator)
    appended = {"grown_from": NOW, "grown_to": GROWN}
    assert problem(await put(coordinator, appended, clients[0].token)) == "forbidden"
    for wrong in ({}, appended | {"from_data_index": -1}, {"grown_from": NOW, "grown_to": NOW | {"file_count": 0}}, 7):
        assert problem(await put(coordinator, wrong)) == "invalid-body"
    for other in ({"grown_from": GROWN, "grown_to": NOW}, {"grown_from": NOW, "grown_to": NOW}):
        assert problem(await put(coordinator, other)) == "not-now"
    assert (await shown(coordinator)).generations == ()
