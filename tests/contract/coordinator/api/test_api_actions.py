"""What viewers are told of what a run's operators did, and of its audits."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from epochal.state.wire import sha256_hex
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import ADMIN, Served, WireClient, problem, served, training

AUDIT: dict[str, Any] = {
    "rounds": 3,
    "applied": 6,
    "duplicates": 0,
    "missing": 0,
    "quarantined": 0,
    "unapplied": 0,
    "replay_identical": True,
    "record_chain": sha256_hex(b"records"),
    "replica_chain": sha256_hex(b"replicas"),
    "blobs": 4,
    "wrong_blobs": 0,
    "recomputed_steps": None,
    "replicas_identical": None,
    "problems": [],
    "remarks": ["quarantined, and not trained on: 1 batch"],
}


@pytest.fixture
async def played() -> AsyncIterator[tuple[Served, list[WireClient]]]:
    """A run of which a round has ended."""
    async with served(state_file(config__waiting_for_members_extra_time=0.001)) as coordinator:
        clients = await training(coordinator)
        await coordinator.insight.history.is_read.wait()
        await play_round(coordinator, clients)
        yield coordinator, clients


async def get(coordinator: Served, place: str) -> Any:
    answer = await coordinator.http.get(coordinator.run_url + place)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def operate(coordinator: Served, method: str, place: str, body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    return await coordinator.http.request(method, coordinator.run_url + place, json=body, headers=headers)


async def test_recorded_audit_is_shown_with_its_time(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    assert (await operate(coordinator, "POST", "/audits", AUDIT)).status_code == 204
    (audit,) = (await get(coordinator, "/audits"))["audits"]
    assert (audit["report"], audit["step"]) == (AUDIT, 1)
    assert audit["recorded_s"] > 0


async def test_odd_audit_is_refused(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = played
    for changed in ({"applied": -1}, {"problems": ["x" * 501]}, {"problems": ["x"] * 21}, {"record_chain": "x"}):
        assert problem(await operate(coordinator, "POST", "/audits", AUDIT | changed)) == "invalid-body"
    assert (await get(coordinator, "/audits"))["audits"] == []


async def test_client_that_was_not_convicted_is_not_absolved(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    answer = await operate(coordinator, "POST", f"/clients/{clients[1].client_id}/absolve")
    assert problem(answer) == "not-found"
    assert [action["name"] for action in (await get(coordinator, "/actions"))["actions"]] == ["genesis"]


async def test_actions_are_listed_with_time_and_version(played: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = played
    await operate(coordinator, "POST", "/pause")
    await operate(coordinator, "POST", "/resume")
    await operate(coordinator, "PUT", "/finish", {"after_step": 3})
    await operate(coordinator, "POST", f"/clients/{clients[1].client_id}/eject")
    await operate(coordinator, "POST", "/audits", AUDIT)
    page = await get(coordinator, "/actions")
    found = [(action["name"], action["arguments"]) for action in page["actions"]]
    assert found[0][0] == "genesis"
    assert found[1:] == [
        ("pause", {}),
        ("resume", {}),
        ("finish", {"after_step": 3}),
        ("eject", {"client_id": clients[1].client_id}),
        ("audit", {"verdict": "passed", "rounds": 3}),
    ]
    assert page["next"] == 6
    assert [action["number"] for action in page["actions"]] == list(range(6))
    times = [action["at_s"] for action in page["actions"]]
    assert times == sorted(times)
    versions = [action["version"] for action in page["actions"]]
    assert versions == sorted(versions)
    assert versions[-1] <= coordinator.service.published.version
