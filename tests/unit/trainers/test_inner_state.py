"""The inner state is tentative until its result counts."""

import pytest

from state.errors import TrainerFailed
from tests.support.local_training import SEED, arriving, bytes_of, numpy_trainer, plan_of, sequences_of
from trainers.learner_trainer import LearnerTrainer


async def test_numpy_inner_state_is_tentative_until_committed() -> None:
    sequences = sequences_of(*[16] * 4)
    trainer, twin = numpy_trainer(), numpy_trainer()
    start = await trainer.initial_parameters(SEED)

    async def difference(of: LearnerTrainer) -> dict[str, bytes]:
        return bytes_of((await of.train(plan_of(4), start, arriving(sequences))).difference)

    first = await difference(trainer)
    trainer.roll_back_inner_state()
    assert await difference(trainer) == first
    assert await difference(trainer) == first  # the next `train` rolls back by itself
    trainer.roll_back_inner_state()
    trainer.commit_inner_state()
    assert await difference(trainer) == first
    trainer.commit_inner_state()
    second = await difference(trainer)
    assert second != first
    await difference(twin)
    twin.commit_inner_state()
    assert await difference(twin) == second


async def test_numpy_inner_state_reset_starts_every_round_afresh() -> None:
    trainer, sequences = numpy_trainer("reset"), sequences_of(*[16] * 4)
    start = await trainer.initial_parameters(SEED)
    differences = []
    for _ in range(2):
        differences.append(bytes_of((await trainer.train(plan_of(4), start, arriving(sequences))).difference))
        trainer.commit_inner_state()
    assert differences[0] == differences[1]


async def test_numpy_failed_round_leaves_the_inner_state_as_it_was() -> None:
    sequences = sequences_of(*[16] * 4)
    trainer, untouched = numpy_trainer(), numpy_trainer()
    start = await trainer.initial_parameters(SEED)
    await trainer.train(plan_of(4), start, arriving(sequences))
    with pytest.raises(TrainerFailed):
        await trainer.train(plan_of(5), start, arriving(sequences))
    trainer.commit_inner_state()
    found = await trainer.train(plan_of(4), start, arriving(sequences))
    wanted = await untouched.train(plan_of(4), start, arriving(sequences))
    assert bytes_of(found.difference) == bytes_of(wanted.difference)
