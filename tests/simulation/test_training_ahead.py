"""Runs with `merge.delay`, in virtual time: clients train for the next round before the present one has an outcome."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.coordinator.machine.stimuli import PauseRequested, ResumeRequested
from epochal.data_providers.protocol import DataProvider, TokenBatch
from epochal.run_manager.agent import EndReason
from epochal.run_manager.context import RunAccess
from epochal.run_manager.events import BecameReady, DocumentArrived, Event, OutcomeMerged, PartBegan, RoundTrained
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import AdamW
from epochal.state.config.state_file import StateFile
from epochal.state.model.tensors import BYTES_TYPE, Float32Array, read_tensor_header
from epochal.state.phase_names import RunState
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.protocol import TrainedRound
from tests.support.data.stored_blobs import blob_bytes
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient, open_dummy_provider
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import (
    BOUND_S,
    TOTAL_STEPS,
    SimulatedRun,
    prove,
    repeatedly,
    simulated_run,
    small_state,
)
from tests.support.simulate.virtual_time import in_virtual_time, run_virtually
from tests.support.thinned import thinned

TRAIN_S = 12.0
SLOW_LINKS = Weather(delay_s=(0.3, 0.6))


class SlowTrainer(LearnerTrainer):
    """Takes some seconds of virtual time for a round."""

    @classmethod
    def open(cls, state: StateFile, worker: Worker) -> "SlowTrainer":
        optimizer = state.model.LLM.optimizer
        assert isinstance(optimizer, AdamW)
        return cls(NgramModel(state.model.LLM.ngram), optimizer, state.merge.inner_state == "keep", worker)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        await asyncio.sleep(TRAIN_S)
        return trained


SLOW = ClientSpec(open_trainer=SlowTrainer.open)


def delayed(**overrides: Any) -> StateFile:
    """One long epoch, in which rounds are trained ahead."""
    return small_state(6, **{"merge__delay": 1, "config__epoch_time": 4000, "merge__codec": "int4", **overrides})


def first_places(client: SimulatedClient) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Return by step where among a client's events its training began, its round's document came, and its merge."""
    trained, came, merged = dict[int, int](), dict[int, int](), dict[int, int]()
    for place, event in enumerate(client.events):
        match event:
            case PartBegan(step=step, part="train"):
                trained.setdefault(step, place)
            case DocumentArrived(document=document) if document.round is not None:
                came.setdefault(document.round.step, place)
            case OutcomeMerged(step=step):
                merged.setdefault(step, place)
    return trained, came, merged


@in_virtual_time
async def test_training_begins_before_the_outcome_of_the_round_before() -> None:
    async with simulated_run(delayed(), seed=1, weather=SLOW_LINKS) as run:
        ends = await run.play(SLOW, SLOW, SLOW)
        assert [end.reason for end in ends] == [EndReason.FINISHED] * 3
        await prove(run)
    for client in run.clients:
        trained, came, merged = first_places(client)
        for step in range(3, TOTAL_STEPS + 1):
            assert trained[step] < merged[step - 1]
            assert came[step] < merged[step - 1]
        for step in range(4, TOTAL_STEPS + 1):  # of the third one they first fetch roster and work list
            assert trained[step] < came[step]
        counts = [event.step for event in client.of(PartBegan) if event.part == "train"]
        assert sorted(counts) == list(range(1, TOTAL_STEPS + 1)), "nothing was trained twice"
        assert [event.step for event in client.of(RoundTrained)] == list(range(1, TOTAL_STEPS + 1))


@in_virtual_time
async def test_results_name_their_starts_which_were_applied() -> None:
    async with simulated_run(delayed(), seed=2, weather=SLOW_LINKS) as run:
        await run.play(SLOW, SLOW, SLOW)
        outcomes = run.coordinator.service.run.models.outcomes
        for step in sorted(outcomes)[1:]:
            before = {entry.client_id: entry.result_sha256 for entry in outcomes[step - 1].entries}
            for entry in outcomes[step].entries:
                data = await blob_bytes(run.coordinator.store.blobs, entry.result_sha256)
                start = read_tensor_header(data, (BYTES_TYPE,)).metadata.get("start", "")
                assert start == (before[entry.client_id] if step > 2 else "")
        await prove(run)


@pytest.mark.nightly
@in_virtual_time
async def test_client_killed_while_it_trains_ahead_comes_back() -> None:
    async with simulated_run(delayed(config__total_steps=14), seed=3, weather=SLOW_LINKS) as run:
        lasting = [run.start(run.client(number, SLOW)) for number in (1, 2, 3)]
        begun = asyncio.Event()

        def saw(event: Event) -> None:
            run.witness.event(event)
            if isinstance(event, PartBegan) and (event.step, event.part) == (4, "train"):
                begun.set()

        killed = run.start(run.client(4, replace(SLOW, saw=saw)))
        await begun.wait()
        killed.kill()
        again = run.start(run.client(4, SLOW))
        ends = await run.ends([*lasting, again], BOUND_S)
        assert [end.reason for end in ends] == [EndReason.FINISHED] * 4
        assert again.of(RoundTrained)
        await prove(run)


@in_virtual_time
async def test_pause_and_resume_loses_nothing() -> None:
    async with simulated_run(delayed(), seed=4, weather=SLOW_LINKS) as run:
        clients = [run.start(run.client(number, SLOW)) for number in (1, 2, 3)]
        await run.coordinator.reached(RunState.ROUND_TRAIN, 4)
        await run.coordinator.service.submit(PauseRequested())
        await run.coordinator.reached(RunState.PAUSED)
        await run.coordinator.service.submit(ResumeRequested())
        await run.ends(clients, BOUND_S)
        await prove(run)


@in_virtual_time
async def test_newcomer_that_was_promised_work_reports_ready_before_it_trains() -> None:
    async def open_slowly(access: RunAccess) -> DataProvider:
        await asyncio.sleep(2.5 * TRAIN_S)
        return await open_dummy_provider(access)

    async with simulated_run(delayed(config__total_steps=12), seed=5, weather=SLOW_LINKS) as run:
        lasting = [run.start(run.client(number, SLOW)) for number in (1, 2, 3)]
        await run.coordinator.reached(RunState.ROUND_TRAIN, 3)
        newcomer = run.start(run.client(4, replace(SLOW, open_provider=open_slowly)))
        await run.ends([*lasting, newcomer], BOUND_S)
        await prove(run)
    places = [place for place, event in enumerate(newcomer.events) if isinstance(event, BecameReady)]
    training = [place for place, event in enumerate(newcomer.events) if isinstance(event, PartBegan)]
    assert places[0] < training[0]
    assert newcomer.of(RoundTrained)


@thinned("codec", ["int4", "sparse"], kept=1)
@in_virtual_time
async def test_restarts_a_void_round_and_a_departure_leave_one_replica(codec: str) -> None:
    """A client and the coordinator are killed, a round has no outcome, and a member leaves, all while others train."""
    steps, feedback = 14, {"merge__error_feedback": codec == "sparse"}
    async with simulated_run(
        delayed(config__total_steps=steps, merge__codec=codec, **feedback), seed=6, weather=SLOW_LINKS
    ) as run:
        coordinator = run.coordinator
        lasting = [run.start(run.client(number, SLOW)) for number in (1, 2)]
        leaving, killed = (run.start(run.client(number, SLOW)) for number in (3, 4))
        await coordinator.reached(RunState.ROUND_TRAIN, 4)
        killed.kill()
        lasting.append(run.start(run.client(4, SLOW)))
        await coordinator.reached(RunState.ROUND_TRAIN, 6)
        await coordinator.restart_after(1.0)
        await coordinator.reached(RunState.ROUND_TRAIN, 8)
        for client in (*lasting, leaving):
            client.link.cut = True
        await coordinator.wait_for(lambda: (head := coordinator.document.round) is not None and head.attempt > 0)
        for client in (*lasting, leaving):
            client.link.cut = False
        await coordinator.reached(RunState.ROUND_TRAIN, 11)
        leaving.agent.finish_and_withdraw()
        ends = await run.ends([*lasting, leaving], BOUND_S)
        assert [end.reason for end in ends] == [EndReason.FINISHED] * 3 + [EndReason.WITHDREW]
        assert {end.replica_digest for end in ends[:3]} == {coordinator.run.models.updates[steps].replica_digest}
        assert all(_trained_ahead(client) for client in lasting[:2])
        await prove(run)


async def churn(run: SimulatedRun) -> None:
    """Kill a client, or restart the coordinator, again and again; another process with the same key follows."""

    async def change() -> None:
        if run.chance.random() < 0.2:
            await run.coordinator.restart_after(run.chance.choice([0.1, 5.0]))
            return
        leaving = run.chance.choice([client for client in run.clients if client.number and not client.link.cut])
        leaving.kill()
        await asyncio.sleep(run.chance.uniform(0, 30))
        run.start(run.client(leaving.number, SLOW))

    await repeatedly(change, run.chance, (4, 40))


@thinned(("seed", "feedback"), product((0, 1, 2), (True, False)), kept=1)
def test_replicas_agree_whoever_comes_and_goes(seed: int, *, feedback: bool) -> None:
    async def play() -> None:
        state = delayed(config__total_steps=24, config__epoch_time=200, merge__error_feedback=feedback)
        weather = Weather(loss=0.02, repeat=0.05, delay_s=(0.0, 1.0))
        async with simulated_run(state, seed, weather=weather) as run:
            lasting = [run.start(run.client(0, SLOW))]
            for number in range(1, 6):
                run.start(run.client(number, SLOW))
            changing = run.tasks.create_task(churn(run))
            try:
                await run.ends(lasting, BOUND_S)
            finally:
                changing.cancel()
            await prove(run)
            ahead = [client for client in run.clients if _trained_ahead(client)]
            assert ahead, "somebody trained before its round"

    run_virtually(play())


def _trained_ahead(client: SimulatedClient) -> bool:
    trained, came, _ = first_places(client)
    return any(step in came and trained[step] < came[step] for step in trained)
