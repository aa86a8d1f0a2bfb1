"""Runs that go back to a kept checkpoint, in virtual time with real clients: in each phase, and with members away."""

import pytest

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import PauseRequested, ResumeRequested, RunRewound
from epochal.run_manager.events import ReplicaHeld
from epochal.state.documents import Outcome, branch_of
from epochal.state.intervals import BatchId, coalesce
from epochal.state.phase_names import RunState
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import BOUND_S, SimulatedRun, prove, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

SLOW = Weather(delay_s=(0.05, 0.4))
STEPS = 12
STATE = {
    "config__total_steps": STEPS,
    "config__checkpoint_every": 2,
    "config__epoch_time": 10_000,
    "model__LLM__cold_start_warmup_steps": 20,
    "merge__codec": "int4",
    "merge__error_feedback": True,
    "merge__inner_state": "keep",
    "run__keep_journal": "compact",
}


async def go_back(run: SimulatedRun, *, skip: bool = False, newest: bool = True) -> int:
    """Take the run back to a kept checkpoint; return its step."""
    step = run.coordinator.run.models.checkpoints[-1 if newest else 0].step
    lineage = f"{run.coordinator.run.progress.branch + 1:032x}"
    await run.coordinator.service.submit(RunRewound(step, skip, lineage))
    return step


def batches_of(outcomes: list[Outcome]) -> tuple[BatchId, ...]:
    return coalesce(batch for outcome in outcomes for entry in outcome.entries for batch in entry.assignment)


def is_making(run: Run) -> bool:
    """Whether a checkpoint is being made, and somebody has announced its bytes."""
    making = run.models.checkpointing
    return making is not None and any(claim.blob_sha256 for claim in making.claims.by_client.values())


async def reach(run: SimulatedRun, moment: str) -> None:
    """Wait for a moment after the checkpoint of step 4."""
    coordinator = run.coordinator
    await coordinator.wait_for(lambda: any(ref.step >= 4 for ref in coordinator.run.models.checkpoints))
    match moment:
        case "round":
            step = coordinator.run.progress.step + 1
            await coordinator.wait_for(
                lambda: (
                    coordinator.run.progress.step > step
                    and coordinator.run.round is not None
                    and bool(coordinator.run.round.results.commitments)
                )
            )
        case "checkpoint":
            await coordinator.wait_for(lambda: is_making(coordinator.run))
        case "witness":
            run.clients[0].link.cut = True
            await coordinator.reached(RunState.ROUND_WITNESS, coordinator.run.progress.step + 1)
            run.clients[0].link.cut = False
        case "paused":
            await coordinator.service.submit(PauseRequested())
            await coordinator.reached(RunState.PAUSED)


@thinned("moment", ["round", "checkpoint", "witness", "paused"])
@in_virtual_time
async def test_run_that_goes_back_ends_with_one_replica_and_a_clean_audit(moment: str) -> None:
    async with simulated_run(small_state(6, **STATE), seed=11, weather=SLOW) as run:
        clients = run.start_clients(3, ("numpy",))
        await reach(run, moment)
        step = await go_back(run, newest=moment != "paused")
        if moment == "paused":
            assert run.coordinator.run.clock.phase is RunState.PAUSED
            await run.coordinator.service.submit(ResumeRequested())
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        report = await run.audit()
        assert (report.problems, report.replicas_identical) == ((), True)
        assert (report.rewinds, report.skipped, report.rounds) == (1, 0, run.coordinator.run.progress.replica_step)
        assert report.compacted_segments > 0, "the journal of both branches is a proof"
        assert report.dropped_rounds == len(run.coordinator.outcomes) - report.rounds
        rebuilt = [event for client in clients for event in client.of(ReplicaHeld) if event.origin == "checkpoint"]
        assert [event.step for event in rebuilt].count(step) >= len(clients)


@in_virtual_time
async def test_same_batches_are_trained_again_from_the_same_replica() -> None:
    async with simulated_run(small_state(6, **STATE), seed=12) as run:
        clients = run.start_clients(3, ("numpy",))
        await reach(run, "round")
        step = await go_back(run, newest=False)
        before = list(run.coordinator.outcomes)
        taken_back = [outcome for outcome in before if outcome.step > step]
        assert len(taken_back) >= 2
        await run.ends(clients, BOUND_S)
        again = run.coordinator.outcomes[len(before) : len(before) + len(taken_back)]
        assert [outcome.step for outcome in again] == [outcome.step for outcome in taken_back]
        assert [batches_of([outcome]) for outcome in again] == [batches_of([outcome]) for outcome in taken_back]
        assert again[0].replica_digest == taken_back[0].replica_digest
        assert {branch_of(outcome.attempt) for outcome in again} == {1}
        await prove(run)


@in_virtual_time
async def test_skipped_batches_are_in_no_later_outcome() -> None:
    async with simulated_run(small_state(6, **STATE), seed=13) as run:
        clients = run.start_clients(3, ("numpy",))
        await reach(run, "round")
        step = await go_back(run, skip=True)
        before = list(run.coordinator.outcomes)
        skipped = run.coordinator.run.work.skipped
        assert skipped
        await run.ends(clients, BOUND_S)
        later = batches_of(run.coordinator.outcomes[len(before) :])
        earlier = batches_of([outcome for outcome in before if outcome.step <= step])
        for kept in (later, earlier):
            assert len(coalesce((*kept, *skipped))) <= len(kept) + len(skipped)
            assert sum(one.count for one in coalesce((*kept, *skipped))) == sum(one.count for one in (*kept, *skipped))
        report = await run.audit()
        assert (report.problems, report.missing) == ((), 0)
        assert report.skipped == sum(one.count for one in skipped)


@pytest.mark.nightly
@thinned("seed", [21, 22, 23], kept=1)
@in_virtual_time
async def test_members_that_were_away_come_back_into_the_new_branch(seed: int) -> None:
    async with simulated_run(small_state(6, **STATE), seed, weather=SLOW) as run:
        clients = run.start_clients(4, ("numpy", "null"))
        await reach(run, "round")
        clients[0].link.cut = clients[1].link.cut = True
        await run.coordinator.reached(RunState.ROUND_TRAIN, run.coordinator.run.progress.step + 1)
        await go_back(run)
        step = run.coordinator.run.progress.step
        clients[0].link.cut = False
        await run.coordinator.reached(RunState.ROUND_TRAIN, step + 1)
        clients[1].link.cut = False
        await go_back(run, newest=False, skip=True)
        await run.coordinator.restart_after(5.0)
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        report = await run.audit()
        assert (report.problems, report.replicas_identical, report.rewinds) == ((), True, 2)


@in_virtual_time
async def test_finished_run_goes_on_with_clients_that_join_then() -> None:
    async with simulated_run(small_state(6, **(STATE | {"config__total_steps": 5})), seed=14) as run:
        await run.ends(run.start_clients(3, ("numpy",)), BOUND_S)
        await run.coordinator.reached(RunState.FINISHED)
        await go_back(run, newest=False)
        ends = await run.ends(run.start_clients(3, ("numpy",)), BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        report = await run.audit()
        assert (report.problems, report.replicas_identical, report.rounds) == ((), True, 5)
