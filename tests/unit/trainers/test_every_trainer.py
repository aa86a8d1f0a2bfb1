"""What every trainer on one machine does."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from batching.micro_batches import Example
from data_providers.protocol import IGNORED_LABEL, SourceUnavailable, TokenBatch
from runtime.worker_thread import InlineWorker
from state.errors import TrainerFailed
from tests.support.local_training import (
    SEED,
    TINY,
    arriving,
    batch_of,
    bytes_of,
    loss_and_gradient,
    plan_of,
    sequences_of,
)
from tests.support.states import state_file
from trainers.ngram.model import (
    padded_targets,
    padded_tokens,
    parameter_shapes,
)
from trainers.protocol import Trainer
from trainers.registry import open_trainer


@pytest.fixture(params=["numpy", "null"])
def trainer(request: pytest.FixtureRequest) -> Trainer:
    state = state_file(model__LLM__ngram=TINY.model_dump())
    return open_trainer(request.param, state, state.model.LLM.spec, InlineWorker())


async def test_trainer_gives_a_difference_for_every_parameter_and_counts_tokens(trainer: Trainer) -> None:
    start = await trainer.initial_parameters(SEED)
    before = bytes_of(start)
    trained = await trainer.train(plan_of(5), start, arriving(sequences_of(8, 8, 8, 8, 8)))
    assert {name: (array.shape, array.dtype) for name, array in trained.difference.items()} == {
        name: (shape, np.dtype(np.float32)) for name, shape in parameter_shapes(TINY).items()
    }
    assert trained.token_count == 40
    assert bytes_of(start) == before
    assert (trainer.name == "null") == (trained.loss is None)
    assert (trainer.name == "null") == (not any(array.any() for array in trained.difference.values()))
    await trainer.aclose()


@pytest.mark.parametrize(("arrived", "message"), [(3, "ended after 3 of 5"), (6, "more samples arrived than the 5")])
async def test_trainer_with_another_number_of_sequences_than_assigned_fails(
    trainer: Trainer, arrived: int, message: str
) -> None:
    start = await trainer.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match=message):
        await trainer.train(plan_of(5), start, arriving(sequences_of(*[8] * arrived)))
    assert (await trainer.train(plan_of(5), start, arriving(sequences_of(*[8] * 5)))).token_count == 40


async def test_trainer_predicts_the_labels_that_are_not_ignored(trainer: Trainer) -> None:
    tokens = sequences_of(30)[0]
    labels = tokens.astype(np.int64)
    labels[::3] = IGNORED_LABEL

    async def batches() -> AsyncIterator[TokenBatch]:
        yield TokenBatch(tokens, np.array([0, 30], np.int64), labels=labels)

    start = await trainer.initial_parameters(SEED)
    trained = await trainer.train(plan_of(1), start, batches())
    assert trained.token_count == 20
    if trained.loss is not None:
        padded = padded_tokens([tokens], TINY.context)
        targets = padded_targets([Example(tokens, labels)], TINY.context)
        loss, count, _ = loss_and_gradient(start, padded, targets=targets)
        assert trained.loss == pytest.approx(loss / count, rel=1e-6)
        assert trained.token_count == count


async def test_trainer_passes_the_provider_s_error_on(trainer: Trainer) -> None:
    async def batches() -> AsyncIterator[TokenBatch]:
        yield batch_of(sequences_of(8))
        raise SourceUnavailable("gone")

    with pytest.raises(SourceUnavailable, match="gone"):
        await trainer.train(plan_of(2), await trainer.initial_parameters(SEED), batches())
