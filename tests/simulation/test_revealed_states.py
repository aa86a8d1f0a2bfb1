"""Clients that keep inner states, and real verifiers that replay their results from those that they reveal."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.coordinator.machine.instructions import Convicted, ReplayJudged, ReplaysDrawn, StateWithheld
from epochal.data_providers.protocol import DataProvider, DatasetSpec, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.agent import LEAVE_BOUND_S, ClientEnd, EndReason
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.run_manager.events import DocumentArrived, StepEntered, ignore
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.config.model_table import AdamW
from epochal.state.config.state_file import StateFile
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.model.tensors import Float32Array
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.tools.model_size import ModelSize
from epochal.trainers.first_parameters import make_first_model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.protocol import TrainedRound, Trainer
from epochal.trainers.registry import open_trainer
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.models.lying_trainer import BoastingTrainer
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient
from tests.support.simulate.simulated_network import Faults, no_faults
from tests.support.simulate.simulated_run import BOUND_S, SimulatedRun, prove, simulated_run, small_state
from tests.support.simulate.simulated_verifier import VerifierApi, verifier_of
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time
from tests.support.thinned import thinned

POLICY = RetryPolicy(VirtualClock(), lambda: 0.5, BOUND_S)
CLIENTS = 6
TRAIN_S = 60.0


class Working(LearnerTrainer):
    """Takes some time for a round, so that a verifier can follow."""

    @classmethod
    def open(cls, state: StateFile, worker: Worker) -> Trainer:
        """Return the trainer of a client."""
        optimizer = state.model.LLM.optimizer
        assert isinstance(optimizer, AdamW)
        return cls(NgramModel(state.model.LLM.ngram), optimizer, True, worker)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        await asyncio.sleep(TRAIN_S)
        return trained


class Boasting(BoastingTrainer, Working):
    """Commits to larger moments than those that its steps have led to, and takes some time."""


class Watched(Working):
    """Notes each round that it trains, and with how many steps' moments it begins."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.begun: list[tuple[int, int]] = []

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        self.begun.append((plan.step, self.inner_state.step_count))
        return await super().train(plan, parameters, batches)


HONEST = ClientSpec(open_trainer=Working.open)


def opening(_: str | None, __: int | None) -> ClientDependencies:
    async def open_data(access: RunAccess) -> DataProvider:
        return DummyDataProvider(DatasetSpec(2, access.state.model.LLM.max_seq_len))

    async def open_numpy(access: RunAccess, worker: Worker) -> Trainer:
        return open_trainer("numpy", access.state, access.spec, worker)

    parts = POLICY, lambda _: InlineWorker(), open_data, open_numpy, ignore, SPOOL_PARENT
    return ClientDependencies(*parts, Permissions.of_own_run())


def keeping(steps: int = 12, percent: int = 100, **overrides: Any) -> StateFile:
    """A run whose clients keep their inner states, and of which every result is replayed."""
    long = {"config__total_steps": steps, "config__epoch_time": 40_000, "config__checkpoint_every": 8}
    long |= {"config__max_round_train_time": 200, "config__client_timeout_s": 200} | overrides
    verify = {"percent": percent, "within": 4}
    return small_state(6, verify=verify, merge__inner_state="keep", merge__local_steps=3, **long)


class Played:
    """A run, and what its machine has told since it was started.

    Args:
        folder: holds the clients' files.
    """

    def __init__(self, run: SimulatedRun, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.told: list[object] = []
        self.watch()

    def watch(self) -> None:
        """Note what the coordinator's present process tells."""
        self.run.coordinator.service.watch(self.told.append)

    def start(self, number: int, spec: ClientSpec, faults: Faults = no_faults) -> SimulatedClient:
        """Start a client, which may be ejected."""
        client = self.run.client(number, replace(spec, spool_folder=self.folder / str(number)), faults)
        client.task = self.run.tasks.create_task(self._takes_part(client))
        return client

    async def _takes_part(self, client: SimulatedClient) -> ClientEnd:
        with contextlib.suppress(Refused):  # it was ejected
            return await client.agent.run()
        return ClientEnd(EndReason.WITHDREW, None, None)

    async def verify(self) -> None:
        """Be a verifier, until the run has ended and nothing is left to be computed again."""
        api = VerifierApi("verifier", self.run)
        verifier = await verifier_of(api, self.run.coordinator.state, opening, POLICY, varies=False)
        await verifier.run()

    @property
    def judged(self) -> list[ReplayJudged]:
        return [one for one in self.told if isinstance(one, ReplayJudged)]

    @property
    def convicted(self) -> set[str]:
        return {one.client_id for one in self.told if isinstance(one, Convicted)}

    @property
    def withheld(self) -> list[str]:
        return [one.client_id for one in self.told if isinstance(one, StateWithheld)]


def kept_in(folder: Path) -> list[Path]:
    """The inner states that clients keep."""
    return list(folder.rglob("*.state"))


async def ended(clients: list[SimulatedClient], verifying: asyncio.Task[None]) -> None:
    async with asyncio.timeout(BOUND_S):
        await asyncio.wait([client.task for client in clients if client.task is not None])
        await verifying


@in_virtual_time
async def test_honest_results_pass_from_the_states_that_were_revealed(tmp_path: Path) -> None:
    async with simulated_run(keeping(), seed=1) as run:
        played = Played(run, tmp_path)
        clients = [played.start(number, HONEST) for number in (1, 2, 3)]
        await ended(clients, run.tasks.create_task(played.verify()))
        await prove(run)
    drawn = [one for told in played.told if isinstance(told, ReplaysDrawn) for one in told.replays]
    begun = {one.key for one in drawn if one.states is not None and one.states.begin is not None}
    assert not kept_in(tmp_path), "nothing is left of a run that has finished"
    assert len(begun) >= 20, "results of all rounds but each client's first begin with what they kept"
    assert len({(one.report.step, one.report.client_id) for one in played.judged}) >= 30
    assert {(one.report.excess, one.report.state_excess, one.verdict) for one in played.judged} == {
        (0.0, 0.0, "passed")
    }
    assert (played.convicted, played.withheld) == (set(), [])


@in_virtual_time
async def test_member_that_lies_in_its_state_is_convicted(tmp_path: Path) -> None:
    async with simulated_run(keeping(), seed=2) as run:
        played = Played(run, tmp_path)
        liar = played.start(1, ClientSpec(open_trainer=Boasting.open))
        clients = [liar, *(played.start(number, HONEST) for number in (2, 3, 4))]
        await ended(clients, run.tasks.create_task(played.verify()))
        await prove(run)
    assert played.convicted == {liar.client_id}
    lies = [one.report for one in played.judged if one.report.client_id == liar.client_id]
    assert {one.excess for one in lies} == {0.0}
    assert min(one.state_excess or 0.0 for one in lies) > 1.0
    assert played.withheld == []


@in_virtual_time
async def test_member_that_withholds_its_states_goes_on_as_a_new_key(tmp_path: Path) -> None:
    def keep_to_oneself(name: str, leg: str) -> None:
        if name == "put_blob":
            raise Refused(Refusal.GONE, "this client uploads nothing")

    async with simulated_run(keeping(16), seed=3) as run:
        played = Played(run, tmp_path)
        silent = played.start(1, HONEST, keep_to_oneself)
        clients = [silent, *(played.start(number, HONEST) for number in (2, 3, 4))]
        await ended(clients, run.tasks.create_task(played.verify()))
        await prove(run)
        assert run.coordinator.run.members.trust_of(silent.client_id).rounds == 0
    assert set(played.withheld) == {silent.client_id}
    assert len(played.withheld) > 1
    assert played.convicted == set()


@pytest.mark.parametrize("at_end_of_epoch", [False, True])
@in_virtual_time
async def test_member_that_leaves_reveals_the_states_of_its_last_result_first(
    tmp_path: Path, at_end_of_epoch: bool
) -> None:
    ends: dict[str, Any] = {"config__epoch_time": 6 * TRAIN_S - 20.0} if at_end_of_epoch else {}
    state = keeping(config__init_min_clients=2, **ends)
    async with simulated_run(state, seed=7) as run:
        played = Played(run, tmp_path)
        leaving, *staying = [played.start(number, HONEST) for number in (1, 2, 3)]
        verifying = run.tasks.create_task(played.verify())
        last = 6
        await run.coordinator.wait_for(lambda: last in {entered.document.step for entered in leaving.of(StepEntered)})
        await asyncio.sleep(TRAIN_S / 2)
        leaving.agent.finish_and_withdraw()
        await ended([leaving, *staying], verifying)
        await prove(run)
    outcomes = {outcome.step: outcome for outcome in run.coordinator.outcomes}
    assert leaving.client_id in {entry.client_id for entry in outcomes[last].entries}
    assert leaving.client_id not in {entry.client_id for entry in outcomes[last + 1].entries}
    assert leaving.of(DocumentArrived)[-1].document.run_state is (
        RunState.COOLDOWN if at_end_of_epoch else RunState.ROUND_TRAIN
    )
    assert (last, leaving.client_id) in {(one.report.step, one.report.client_id) for one in played.judged}
    assert (played.convicted, played.withheld) == (set(), [])


@in_virtual_time
async def test_member_that_leaves_waits_for_no_coordinator_that_is_gone(tmp_path: Path) -> None:
    is_cut = asyncio.Event()

    def cut(_: str, __: str) -> None:
        if is_cut.is_set():
            raise CoordinatorUnreachable("no route to the coordinator")

    async with simulated_run(keeping(), seed=8) as run:
        played = Played(run, tmp_path)
        leaving, *staying = [played.start(1, HONEST, cut), *(played.start(number, HONEST) for number in (2, 3))]
        await run.coordinator.wait_for(lambda: 4 in {entered.document.step for entered in leaving.of(StepEntered)})
        await asyncio.sleep(TRAIN_S / 2)
        is_cut.set()
        asked_s = asyncio.get_running_loop().time()
        leaving.agent.finish_and_withdraw()
        assert leaving.task is not None
        await leaving.task
        assert asyncio.get_running_loop().time() - asked_s < LEAVE_BOUND_S - TRAIN_S / 2
        for client in staying:
            client.kill()


@in_virtual_time
async def test_states_outlive_a_restart_of_client_and_coordinator(tmp_path: Path) -> None:
    async with simulated_run(keeping(16), seed=4) as run:
        played = Played(run, tmp_path)
        clients = [played.start(number, HONEST) for number in (1, 2, 3)]
        verifying = run.tasks.create_task(played.verify())
        await run.coordinator.wait_for(lambda: run.coordinator.run.progress.step >= 6)
        clients[0].kill()
        clients[0] = played.start(1, HONEST)
        await run.coordinator.wait_for(lambda: run.coordinator.run.progress.step >= 9)
        await run.coordinator.restart_after(5.0)
        await run.coordinator.wait_for(lambda: run.coordinator.service.accepting)
        played.watch()
        again = run.coordinator.run.progress.step
        await ended(clients, verifying)
        await prove(run)
    of_first = {one.report.step for one in played.judged if one.report.client_id == clients[0].client_id}
    assert max(of_first) > again >= 9
    assert {(one.report.excess, one.report.state_excess) for one in played.judged} == {(0.0, 0.0)}
    assert (played.convicted, played.withheld) == (set(), [])


@in_virtual_time
async def test_calibration_takes_one_piece_a_round_and_begins_with_moments(tmp_path: Path) -> None:
    opened: list[Watched] = []

    def watched(_: str | None, __: int | None) -> ClientDependencies:
        async def open_watched(access: RunAccess, worker: Worker) -> Trainer:
            trainer = Watched.open(access.state, worker)
            assert isinstance(trainer, Watched)
            opened.append(trainer)
            return trainer

        return replace(opening(None, None), open_trainer=open_watched)

    async with simulated_run(keeping(), seed=5) as run:
        played = Played(run, tmp_path)
        clients = [played.start(number, HONEST) for number in (1, 2, 3)]
        api = VerifierApi("verifier", run)
        verifier = await verifier_of(api, run.coordinator.state, watched, POLICY, varies=False)
        await verifier.calibrate(3)
        await ended(clients, run.tasks.create_task(verifier.run()))
    (trainer,) = opened
    found = [(step, moments > 0) for step, moments in trainer.begun[:9]]
    assert found == [(step, has_moments) for step in (1, 2, 3) for has_moments in (False, True, True)]


@thinned(("percent", "every", "is_verified"), [(20, 8, False), (20, 8, True), (100, 8, False), (100, 0, False)], kept=1)
@in_virtual_time
async def test_run_with_as_much_room_as_check_asks_for_ends(
    tmp_path: Path, percent: int, every: int, is_verified: bool
) -> None:
    """Its model is large beside the headers of files; without a verifier what is drawn stays open for longest."""
    fields: dict[str, Any] = {"config__init_min_clients": CLIENTS, "config__checkpoint_every": every}
    fields["model__LLM__ngram"] = {"context": 2, "embedding": 16, "hidden": 64}
    state = keeping(24, percent, **fields)
    room = ModelSize.of(make_first_model(state, 0).spec, state.merge).total_bytes(state)
    async with simulated_run(keeping(24, percent, **fields, blobs__max_total_bytes=room), seed=6) as run:
        played = Played(run, tmp_path)
        clients = [played.start(number, HONEST) for number in range(1, CLIENTS + 1)]
        if is_verified:
            await ended(clients, run.tasks.create_task(played.verify()))
        else:
            await ended(clients, run.tasks.create_task(asyncio.sleep(0)))
        await prove(run)
    assert played.convicted == set()
