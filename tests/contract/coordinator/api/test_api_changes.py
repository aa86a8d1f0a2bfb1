"""Settings that change from a step on, over HTTP: announced, listed, withdrawn, refused, and how rounds then merge."""

from typing import Any

import pytest

from epochal.coordinator.machine.stimuli import ChangeAnnounced
from tests.support.data.states import state_file
from tests.support.drive.played_rounds import play_round, played_run
from tests.support.drive.served import ADMIN, Served, WireClient, problem, served

CHANGE: dict[str, Any] = {"at_step": 4, "values": {"merge.outer_lr": 0.25, "merge.codec": "int8"}}
FIELDS = [
    {"path": "merge.outer_lr", "before": "0.7", "after": "0.25"},
    {"path": "merge.codec", "before": '"int4"', "after": '"int8"'},
]


async def listed(client: WireClient) -> dict[str, Any]:
    answer = await client.send("GET", "/changes")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_change_is_announced_listed_and_withdrawn() -> None:
    async with played_run(1) as (_, (client, *_)):
        assert await listed(client) == {"first_step": 4, "changes": []}
        answer = await client.send("POST", "/changes", CHANGE, token=ADMIN)
        found = {"at_step": 4, "is_in_force": False, "fields": FIELDS}
        assert answer.json() == await listed(client) == {"first_step": 4, "changes": [found]}
        assert (await client.send("DELETE", "/changes/4", token=ADMIN)).status_code == 204
        gone = await client.send("DELETE", "/changes/4", token=ADMIN)
        assert (problem(gone), (await listed(client))["changes"]) == ("not-found", [])


async def test_change_that_cannot_hold_names_every_reason() -> None:
    async with played_run(1) as (_, (client, *_)):
        body = {"at_step": 1, "values": {"merge.outer_lr": -1.0}, "mix": {"en": 1.0}}
        refused = await client.send("POST", "/changes", body, token=ADMIN)
        assert problem(refused) == "invalid-parameter"
        for reason in ("at_step is 1; allowed: 4 or later", "merge.outer_lr is -1.0", "mix is { en = 1.0 }"):
            assert reason in refused.json()["detail"]
        assert problem(await client.send("POST", "/changes", CHANGE)) == "forbidden"
        assert problem(await client.send("DELETE", "/changes/4")) == "forbidden"


@pytest.mark.parametrize("body", [{}, {"at_step": 0}, {"at_step": "4"}, {"at_step": 4, "mix": {}}, {**CHANGE, "x": 1}])
async def test_malformed_change_is_refused(body: dict[str, Any]) -> None:
    async with played_run(0) as (_, (client, *_)):
        assert problem(await client.send("POST", "/changes", body, token=ADMIN)) == "invalid-body"


async def test_results_of_a_step_are_merged_and_encoded_by_its_own_settings() -> None:
    async with played_run(0) as (coordinator, clients):
        step = coordinator.service.run.progress.step + 2
        body = CHANGE | {"at_step": step, "values": {"merge.outer_lr": 0.25}}
        assert (await clients[0].send("POST", "/changes", body, token=ADMIN)).status_code == 200
        for _ in range(3):
            under_way = coordinator.service.run.progress.step
            assert [rate(coordinator, at) for at in (step - 1, step, step + 1)] == [0.7, 0.25, 0.25]
            assert coordinator.service.run.state_file.merge.outer_lr == rate(coordinator, under_way)
            await play_round(coordinator, clients)


async def test_step_that_has_not_begun_has_its_own_settings() -> None:
    async with served(state_file()) as coordinator:
        await coordinator.service.submit(ChangeAnnounced(1, {"merge.outer_lr": 0.25}))
        assert coordinator.service.run.state_file.merge.outer_lr == 0.7, "nothing is in force yet"
        assert (rate(coordinator, 1), rate(coordinator, 2)) == (0.25, 0.25)


def rate(coordinator: Served, step: int) -> float:
    return coordinator.service.merge_at(step).outer_lr
