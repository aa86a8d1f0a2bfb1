"""`run_manager/agent.py`: whole clients on the real coordinator in virtual time, and how their part of a run ends."""

import asyncio
from collections import Counter

import pytest

from epochal.coordinator.machine.stimuli import ClientsFellSilent
from epochal.coordinator_client.session import Joined
from epochal.run_manager.agent import ClientEnd, EndReason
from epochal.run_manager.events import ReplicaHeld, RoundTrained, StepEntered
from epochal.state.errors import CoordinatorUnreachable, Refused
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient, key_of
from tests.support.simulate.simulated_run import BOUND_S, SimulatedRun, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

NUMPY = ClientSpec(trainer="numpy")


@in_virtual_time
async def test_run_clients_hold_equal_replicas_at_every_step() -> None:
    async with simulated_run(state_file(config__total_steps=4), seed=0) as run:
        ends = await run.play(NUMPY, NUMPY, NUMPY)
        held = [{event.step: event.replica_digest for event in client.of(ReplicaHeld)} for client in run.clients]
        assert held[0] == held[1] == held[2]
        assert sorted(held[0]) == [0, 1, 2, 3, 4]
        assert len(set(held[0].values())) == 5
        assert ends == [ClientEnd(EndReason.FINISHED, 4, held[0][4])] * 3


@in_virtual_time
async def test_run_last_checkpoint_is_the_replica_that_clients_end_with() -> None:
    async with simulated_run(state_file(config__total_steps=4), seed=0) as run:
        ends = await run.play(NUMPY, NUMPY, NUMPY)
        checkpoint = run.coordinator.document.checkpoint
        assert checkpoint is not None
        assert {end.replica_digest for end in ends} == {checkpoint.replica_digest}
        report = await run.audit()
        assert (report.problems, report.rounds) == ((), 4)


@in_virtual_time
async def test_run_a_fast_rounds_requests_are_few() -> None:
    """Round trips are the cost of a round, so a change that adds one must be deliberate."""
    async with simulated_run(state_file(config__total_steps=6), seed=0) as run:
        await run.play(*[ClientSpec()] * 3)
        counts = Counter(name for client in run.clients for name in client.link.requests)
    rounds = 6 * 3
    assert counts["send_result"] == rounds
    assert (counts["ResultCommitment"], counts["put_blob"]) == (0, 1), "the last checkpoint's"
    assert (counts["own_outcome"], counts["outcome"]) == (0, 0), "a member's own part comes with the document"
    assert counts["work"] == 0, "the run document's digest tells it"
    assert counts["roster"] <= 3 * 2
    assert counts["get_blob"] <= 2 * rounds + 3
    assert counts["Attestation"] <= rounds
    assert counts["results"] <= 3 * rounds


@pytest.mark.nightly
@in_virtual_time
async def test_run_coordinator_away_for_minutes_is_met_again_by_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochal.coordinator_client.session")
    async with simulated_run(state_file(config__total_steps=12), seed=0) as run:
        clients = [run.start(run.client(number)) for number in (1, 2, 3)]
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 5)
        await run.coordinator.wait_for(lambda: run.coordinator.document.update is not None)  # all are told now
        await run.coordinator.restart_after(240)
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
    said = [record.message for record in caplog.records]
    assert said.count("coordinator_unreachable") == said.count("coordinator_answers_again") == 3


@in_virtual_time
async def test_run_coordinator_away_beyond_the_bound_ends_the_client() -> None:
    async with simulated_run(state_file(), seed=0) as run:
        run.coordinator.kill()
        with pytest.raises(CoordinatorUnreachable):
            await run.client(1, ClientSpec(reconnect_bound_s=60)).agent.run()
        assert 60 <= asyncio.get_running_loop().time() < 70


@in_virtual_time
async def test_client_that_is_not_admitted_asks_for_nothing_else() -> None:
    async with simulated_run(state_file(access__mode="invitations"), seed=0) as run:
        client = run.client(1)
        with pytest.raises(Refused, match="needs an invitation"):
            await client.agent.run()
        assert set(client.link.requests) == {"challenge"}


@in_virtual_time
async def test_run_member_taken_for_silent_joins_and_trains_again() -> None:
    async with simulated_run(state_file(config__total_steps=30, config__client_timeout_s=20), seed=0) as run:
        clients = [run.start(run.client(number)) for number in (1, 2)]
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 3)
        await run.coordinator.service.submit(ClientsFellSilent((key_of(2).client_id,)))
        ends = await run.ends(clients, BOUND_S)
        assert len(clients[1].of(Joined)) == 2
        assert clients[1].of(RoundTrained)[-1].step > 5
        assert ends[0].replica_digest == ends[1].replica_digest


async def _leaving_in_round_4(run: SimulatedRun) -> tuple[SimulatedClient, SimulatedClient]:
    """Two clients, of which the first one is asked to leave while it trains."""
    leaving, staying = (run.start(run.client(number)) for number in (1, 2))

    def step() -> int:
        return max((entered.document.step for entered in leaving.of(StepEntered)), default=0)

    await run.coordinator.wait_for(lambda: step() == 4)
    leaving.agent.finish_and_withdraw()
    return leaving, staying


@in_virtual_time
async def test_finish_and_withdraw_in_a_round_delivers_its_result_first() -> None:
    async with simulated_run(state_file(config__total_steps=20), seed=0) as run:
        leaving, _ = await _leaving_in_round_4(run)
        (end,) = await run.ends([leaving], BOUND_S)
        assert end.reason is EndReason.WITHDREW
        assert run.coordinator.run.progress.step <= 5
        assert leaving.of(RoundTrained)[-1].step == 4
        assert leaving.client_id not in run.coordinator.run.members


@in_virtual_time
async def test_no_round_counts_on_a_client_that_is_leaving() -> None:
    async with simulated_run(state_file(config__total_steps=20), seed=0) as run:
        leaving, _ = await _leaving_in_round_4(run)
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 5)
        current = run.coordinator.run.round
        assert current is not None
        assert leaving.client_id not in current.tasks.plan.positions
        await run.ends([leaving], BOUND_S)


@in_virtual_time
async def test_finish_and_withdraw_leaves_a_run_that_goes_on() -> None:
    async with simulated_run(state_file(config__total_steps=20), seed=0) as run:
        leaving, staying = await _leaving_in_round_4(run)
        _, end = await run.ends([leaving, staying], BOUND_S)
        assert end.step == 20
        (outcome,) = (outcome for outcome in run.coordinator.outcomes if outcome.step == 4)
        assert leaving.client_id in {entry.client_id for entry in outcome.entries}


@in_virtual_time
async def test_finish_and_withdraw_between_rounds_leaves_at_once() -> None:
    async with simulated_run(state_file(config__init_min_clients=2), seed=0) as run:
        client = run.start(run.client(1))
        await run.coordinator.wait_for(lambda: len(run.coordinator.run.members) == 1)
        await asyncio.sleep(1)
        before_s = asyncio.get_running_loop().time()
        client.agent.finish_and_withdraw()
        assert [end.reason for end in await run.ends([client], BOUND_S)] == [EndReason.WITHDREW]
        assert asyncio.get_running_loop().time() - before_s < 0.1
        assert not run.coordinator.run.members.by_id
