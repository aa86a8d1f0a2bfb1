"""Going back over HTTP: to what a run can go back, how it does, and that the old branch counts for nothing."""

import pytest

from epochal.state.messages.history_rows import HistoryPage
from epochal.state.phase_names import RunState
from epochal.state.wire import parse_document
from tests.support.drive.played_rounds import play_round, played_run
from tests.support.drive.served import ADMIN, DIFFERENCE, REPLICA, Served, WireClient, phase, problem

ROUNDS = 2


async def begin_again(coordinator: Served, clients: list[WireClient]) -> None:
    """Bring the clients into the first round of the new branch."""
    await phase(coordinator, RunState.WARMUP)
    for client in clients:
        assert (await client.ready(REPLICA)).status_code == 200
    await phase(coordinator, RunState.ROUND_TRAIN)


async def test_run_goes_back_and_says_what_that_takes_back() -> None:
    async with played_run(ROUNDS) as (coordinator, clients):
        client = clients[0]
        known = (await client.send("GET", "/rewind", token=ADMIN)).json()
        batches = coordinator.service.run.work.batches_applied
        (choice,) = known["choices"]
        assert (known["step"], known["rewound"]) == (ROUNDS, None)
        assert (choice["step"], choice["rounds"], choice["batches"]) == (0, ROUNDS, batches)
        refused = await client.send("POST", "/rewind", {"to_step": 1}, token=ADMIN)
        assert problem(refused) == "not-found"
        assert "allowed: 0" in refused.json()["detail"]
        lineage = coordinator.service.run.identity.lineage
        after = (await client.send("POST", "/rewind", {"to_step": 0}, token=ADMIN)).json()
        assert (after["step"], after["rewound"]["step"], after["rewound"]["branch"]) == (0, 0, 1)
        document = coordinator.service.published.document
        assert document.lineage != lineage
        assert document.rewound is not None
        await begin_again(coordinator, clients)
        await play_round(coordinator, clients)
        answer = await coordinator.http.get(f"{coordinator.run_url}/history")
        rows = parse_document(HistoryPage, answer.content).rounds
        assert (rows.step, rows.branch, rows.dropped_rounds) == ((1, 2, 1), (0, 0, 1), (1, 1, 0))
        status = (await coordinator.http.get(f"{coordinator.run_url}/status")).json()
        assert (status["rewound"]["step"], status["attempt"], len(status["loss_history"])) == (0, 0, 1)


@pytest.mark.parametrize("body", [{}, {"to_step": -1}, {"to_step": "0"}, {"to_step": 0, "why": ""}])
async def test_malformed_rewind_is_refused(body: dict[str, object]) -> None:
    async with played_run(1) as (_, clients):
        assert problem(await clients[0].send("POST", "/rewind", body, token=ADMIN)) == "invalid-body"
        assert problem(await clients[0].send("POST", "/rewind", {"to_step": 0})) == "forbidden"


async def test_old_result_is_refused_whatever_it_is_announced_as() -> None:
    async with played_run(0) as (coordinator, clients):
        client = clients[0]
        old = client.result(REPLICA, DIFFERENCE)
        announced = client.commitment(old)
        work = coordinator.service.run.round
        await play_round(coordinator, clients)
        assert (await client.send("POST", "/rewind", {"to_step": 0}, token=ADMIN)).status_code == 200
        await begin_again(coordinator, clients)
        current = coordinator.service.run.round
        assert work is not None
        assert current is not None
        assert current.tasks.work == work.tasks.work, "the same work, from the same replica"
        assert problem(await client.send("POST", "/results", announced)) == "late-result"
        assert (await client.commit(old)).status_code == 200, "under the name of the new round"
        refused = await client.put_blob(old)
        assert problem(refused) == "result-invalid"
        assert refused.json()["rule"] == "attempt"
