"""The coordinator ends at each point of making an update, round after round; its successor makes the same bytes."""

import asyncio

import pytest

from epochal.run_manager.agent import EndReason
from epochal.run_manager.events import ReplicaDistrusted
from tests.support.data.states import state_file
from tests.support.drive.killed_makers import PART, POINTS, act_at
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import BOUND_S, prove, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

STEPS = 6
SMALL_MODEL = {"context": 2, "embedding": 2, "hidden": 2}
MAX_KILLS = 4
"""Ends in a row: a maker that begins anew comes to the same point again."""


@thinned("point", POINTS, kept=2)
@in_virtual_time
async def test_maker_killed_at_a_point_is_followed_by_one_that_makes_the_same(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, kills = asyncio.Event(), 0
    state = state_file(config__total_steps=STEPS, merge__norm_limit=0.0, model__LLM__ngram=SMALL_MODEL)
    async with simulated_run(state, seed=3) as run:
        coordinator = run.coordinator

        def kill() -> None:
            nonlocal kills
            if not killed.is_set() and kills < MAX_KILLS and coordinator.run.progress.step >= 2:
                kills += 1
                coordinator.kill()
                killed.set()

        async def start_again() -> None:
            while True:
                await killed.wait()
                killed.clear()
                await asyncio.sleep(1.0)
                coordinator.start()

        act_at(point, kill, monkeypatch.setattr)
        starting = run.tasks.create_task(start_again())
        clients = [run.start(run.client(number, ClientSpec(trainer="numpy"))) for number in (1, 2, 3)]
        ends = await run.ends(clients, BOUND_S)
        starting.cancel()
        assert [end.reason for end in ends] == [EndReason.FINISHED] * 3
        assert (kills, coordinator.starts) == (MAX_KILLS, 1 + MAX_KILLS)
        updates = coordinator.run.models.updates
        assert {end.replica_digest for end in ends} == {updates[STEPS].replica_digest}
        assert not any(client.of(ReplicaDistrusted) for client in clients)
        assert (updates[STEPS].part_count > 1) == (point == PART)
        await prove(run)
