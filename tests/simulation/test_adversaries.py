"""A third of the members are adversaries: every safety rule holds, and the run takes at most twice its time.

Every attack costs some rounds at first, until the adversaries rest and the time limit of RoundTrain follows the run:
until five rounds were applied, each may last `max_round_train_time`, here about seven times what it takes the honest
members. So the runs have `STEPS` steps, over which these rounds are spread; one of ten steps may take longer.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache

import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.run_manager.agent import EndReason
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import total_batches
from epochal.state.model.tensors import Float32Array
from epochal.state.phase_names import RunState
from epochal.trainers.architectures import open_model
from epochal.trainers.null import NullTrainer
from epochal.trainers.protocol import TrainedRound, Trainer
from tests.support.simulate.simulated_adversaries import KINDS, Kind, misbehave
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import RECONNECT_BOUND_S, SimulatedRun, prove, simulated_run, small_state
from tests.support.simulate.virtual_time import run_virtually

STEPS, FEW_STEPS = 100, 20
BATCHES_PER_MEMBER = 3
BATCH_S = (0.5, 1.0)
"""Range of the time for which a client trains on a batch."""
MOST_TIMES = 2.0
LAST_CHECKPOINT_WITHHELD = ("withholding checkpoints", 2)
"""A kind and a seed with which the run's last checkpoint is asked of an adversary first."""
FEW, MORE = (4, 2), (6, 3)
"""Numbers of honest members and of adversaries."""


class PacedTrainer(NullTrainer):
    """The `null` trainer, which takes as long as training does."""

    chance: random.Random

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        await asyncio.sleep(total_batches(plan.assignment) * self.chance.uniform(*BATCH_S))
        return trained


def paced_client(run: SimulatedRun) -> ClientSpec:
    def open_paced(state: StateFile, worker: Worker) -> Trainer:
        trainer = PacedTrainer(open_model(state.model.LLM.spec))
        trainer.chance = random.Random(run.chance.random())
        return trainer

    return ClientSpec(open_trainer=open_paced, reconnect_bound_s=RECONNECT_BOUND_S)


async def play(seed: int, members: tuple[int, int], kinds: Sequence[Kind], steps: int = STEPS) -> float:
    """Return the virtual time until the run was finished, after a check of every safety rule."""
    honest_count, adversary_count = members
    state = small_state(
        BATCHES_PER_MEMBER * honest_count,
        config__total_steps=steps,
        config__epoch_time=120,
        config__max_round_train_time=20,
        config__init_min_clients=honest_count,
    )
    async with simulated_run(state, seed) as run:
        spec = paced_client(run)
        honest = [run.start(run.client(number, spec)) for number in range(honest_count)]
        adversaries = [
            run.tasks.create_task(misbehave(run, honest_count + number, kinds, spec))
            for number in range(adversary_count if kinds else 0)
        ]
        await run.coordinator.reached(RunState.FINISHED)
        took_s = asyncio.get_running_loop().time()
        ends = await run.ends(honest, took_s)
        for adversary in adversaries:
            adversary.cancel()
        assert {end.reason for end in ends} == {EndReason.FINISHED}
        assert len({end.replica_digest for end in ends}) == 1
        assert run.coordinator.run.work.quarantined == ()
        assert run.coordinator.run.models.checkpoint is not None
        assert run.coordinator.run.models.checkpoint.step >= steps, "nobody withheld the model"
        await prove(run)
        return took_s


@cache
def honest_time_s(seed: int, members: tuple[int, int]) -> float:
    return run_virtually(play(seed, members, ()))


def times_as_long(seed: int, members: tuple[int, int], kinds: Sequence[Kind]) -> float:
    """Return how many times as long as without its adversaries the run takes."""
    return run_virtually(play(seed, members, kinds)) / honest_time_s(seed, members)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "seed"), [*((kind, 1) for kind in KINDS), LAST_CHECKPOINT_WITHHELD])
def test_run_with_a_third_of_one_kind_takes_at_most_twice_its_time(kind: str, seed: int) -> None:
    assert times_as_long(seed, FEW, [KINDS[kind]]) <= MOST_TIMES


def test_few_steps_with_a_third_of_all_kinds_break_no_rule() -> None:
    run_virtually(play(1, FEW, tuple(KINDS.values()), FEW_STEPS))


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "members"), [(1, FEW), (2, FEW), (3, MORE)])
def test_run_with_a_third_of_all_kinds_takes_at_most_twice_its_time(seed: int, members: tuple[int, int]) -> None:
    assert times_as_long(seed, members, tuple(KINDS.values())) <= MOST_TIMES
