"""Which data a run trains on, over HTTP: votes of members, and the operator's pin."""

import httpx

from epochal.state.phase_names import RunState
from tests.support.drive.served import ADMIN, REPLICA, Served, WireClient, phase, problem, training

PINNED = "ab" * 32


async def pin(coordinator: Served, fingerprint: object, token: str = ADMIN) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return await coordinator.http.put(
        f"{coordinator.run_url}/fingerprint", json={"data_fingerprint": fingerprint}, headers=headers
    )


async def shown(coordinator: Served) -> tuple[str | None, str, dict[str, int]]:
    found = coordinator.insight.status()
    votes = {dataset.data_fingerprint: dataset.member_count for dataset in found.datasets}
    return found.data_fingerprint, found.data_decided_by, votes


async def test_member_with_other_data_waits_and_its_vote_counts(coordinator: Served) -> None:
    clients = [WireClient(coordinator, number) for number in (1, 2, 3)]
    for client in clients:
        await client.join()
    await phase(coordinator, RunState.WARMUP)
    first, second, third = clients
    assert (await first.ready(REPLICA, "wrong")).status_code == 200
    answer = await second.ready(REPLICA, "right")
    assert (problem(answer), answer.json()["retry"]) == ("data-undecided", True)
    assert await shown(coordinator) == (None, "nobody yet", {"right": 1, "wrong": 1})
    standing = (await third.ready(REPLICA, "right")).json()
    assert standing["ready"]
    assert (await second.ready(REPLICA, "right")).json()["ready"]
    assert problem(await first.ready(REPLICA, "wrong")) == "data-undecided"
    assert await shown(coordinator) == ("right", "turn of its members", {"right": 2, "wrong": 1})


async def test_pin_needs_a_fingerprint(coordinator: Served) -> None:
    for wrong in ("short", "AB" * 32, 7):
        assert problem(await pin(coordinator, wrong)) == "invalid-body"
    assert await shown(coordinator) == (None, "nobody yet", {})


async def test_pinned_data_make_members_with_others_unready(coordinator: Served) -> None:
    clients = await training(coordinator)
    assert (await pin(coordinator, PINNED)).status_code == 204
    assert await shown(coordinator) == (PINNED, "operator", {"data": 2})
    assert coordinator.service.published.document.data_fingerprint == PINNED
    assert coordinator.insight.status().ready_count == 0
    answer = await clients[0].ready(REPLICA)
    assert (problem(answer), answer.json()["retry"], answer.json()["expected"]) == (
        "fingerprint-differs",
        False,
        PINNED,
    )
    assert (await pin(coordinator, None)).status_code == 204
    assert coordinator.insight.status().data_decided_by != "operator"
