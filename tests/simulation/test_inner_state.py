"""What real clients keep of their optimizers' moments from round to round, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import AdamW
from epochal.state.config.state_file import StateFile
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import NO_INNER_STATE, InnerState
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.protocol import TrainedRound
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import TOTAL_STEPS, prove, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time

SLOW_LINKS = Weather(delay_s=(0.3, 0.6))
LATE_S = 300.0
"""Longer than a round."""


class NotingTrainer(LearnerTrainer):
    """Notes the optimizer's state at the beginning and at the end of every round that it trains."""

    def __init__(self, state: StateFile, worker: Worker, late_at: int | None) -> None:
        optimizer = state.model.LLM.optimizer
        assert isinstance(optimizer, AdamW)
        super().__init__(NgramModel(state.model.LLM.ngram), optimizer, state.merge.inner_state == "keep", worker)
        self.late_at = late_at
        self.begun: dict[int, InnerState] = {}
        self.ended: dict[int, InnerState] = {}

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        self.begun[plan.step] = self._inner_state.newest
        trained = await super().train(plan, parameters, batches)
        self.ended[plan.step] = self._inner_state.newest
        if plan.step == self.late_at:
            await asyncio.sleep(LATE_S)
        return trained


async def trained(late_at: int | None = None) -> tuple[list[NotingTrainer], list[set[int]]]:
    """Return the trainers of a run of three clients, and the steps in which each one's result was applied.

    Args:
        late_at: the step in which the first client takes longer than a round.
    """
    trainers = dict[int, NotingTrainer]()

    def open_trainer(number: int, state: StateFile, worker: Worker) -> NotingTrainer:
        return trainers.setdefault(number, NotingTrainer(state, worker, None if number else late_at))

    async with simulated_run(small_state(6, config__epoch_time=4000), seed=1, weather=SLOW_LINKS) as run:
        await run.play(*(ClientSpec(open_trainer=partial(open_trainer, number)) for number in range(3)))
        await prove(run)
        outcomes = run.coordinator.service.run.models.outcomes
        return [trainers[number] for number in range(3)], [
            {step for step, found in outcomes.items() if client.client_id in {one.client_id for one in found.entries}}
            for client in run.clients
        ]


def check(trainer: NotingTrainer, applied: set[int]) -> None:
    """Check that each round began as the last one ended that was applied, to the bit."""
    for step, begun in trainer.begun.items():
        last = trainer.ended[max(one for one in applied if one < step)] if step > min(applied) else NO_INNER_STATE
        assert begun.step_count == last.step_count
        assert {name: values.tobytes() for name, values in begun.tensors.items()} == {
            name: values.tobytes() for name, values in last.tensors.items()
        }


@in_virtual_time
async def test_round_begins_with_the_moments_of_the_last_that_was_applied() -> None:
    trainers, applied = await trained()
    for trainer, steps in zip(trainers, applied, strict=True):
        assert steps == set(range(1, TOTAL_STEPS + 1)) == set(trainer.begun)
        assert trainer.begun[2].step_count > 0
        check(trainer, steps)


@in_virtual_time
async def test_moments_of_a_round_that_was_not_applied_are_rolled_back() -> None:
    trainers, applied = await trained(late_at=4)
    assert 4 not in applied[0]
    assert 4 in trainers[0].ended
    assert max(trainers[0].begun) > 4
    for trainer, steps in zip(trainers, applied, strict=True):
        check(trainer, steps)
