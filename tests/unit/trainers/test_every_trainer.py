"""What every trainer on one machine does."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL, SourceUnavailable, TokenBatch
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import TrainerFailed
from epochal.state.model.computed_class import is_computed_class
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.ngram.model import padded_targets, padded_tokens, parameter_shapes
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import open_trainer
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.local_training import (
    SEED,
    TINY,
    arriving,
    batch_of,
    bytes_of,
    loss_and_gradient,
    plan_of,
    sequences_of,
)
from tests.support.models.tiny_llama import LLAMA_SPEC, LLAMA_STATE, plain_llama, plain_loss

CLIPPED = {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.0, "eps": 1e-8, "clip_grad_norm": 1e-3}}


@dataclass
class Case:
    """A trainer with what is known of it: its model, shapes of parameters, unpredicted first places, and mean loss."""

    trainer: Trainer
    spec: ModelSpec
    shapes: Mapping[str, tuple[int, ...]]
    unpredicted: int = 0
    loss_of: Callable[[Tensors, Any, Any], float] | None = None


def ngram_loss(start: Tensors, tokens: Any, labels: Any) -> float:
    padded = padded_tokens([tokens], TINY.context)
    targets = padded_targets([Example(tokens, labels)], TINY.context)
    loss, count, _ = loss_and_gradient(start, padded, targets=targets)
    return loss / count


def llama_loss(start: Tensors, tokens: Any, labels: Any) -> float:
    count = int(np.count_nonzero(labels[1:] != IGNORED_LABEL))
    return float(plain_loss(plain_llama(start), tokens, labels).detach()) / count


@pytest.fixture(params=["numpy", "null", "torch"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "torch":
        need_module("transformers")
        state = state_file(**LLAMA_STATE, model__LLM__optimizer=CLIPPED)
        trainer = open_trainer("torch", state, LLAMA_SPEC, InlineWorker())
        return Case(trainer, LLAMA_SPEC, open_model(LLAMA_SPEC).shapes, 1, llama_loss)
    state = state_file(model__LLM__ngram=TINY.model_dump(), model__LLM__optimizer=CLIPPED)
    trainer = open_trainer(request.param, state, state.model.LLM.spec, InlineWorker())
    loss_of = None if request.param == "null" else ngram_loss
    return Case(trainer, state.model.LLM.spec, parameter_shapes(TINY), loss_of=loss_of)


async def test_trainer_gives_a_difference_for_every_parameter_and_counts_tokens(case: Case) -> None:
    trainer = case.trainer
    start = await trainer.initial_parameters(SEED)
    before = bytes_of(start)
    trained = await trainer.train(plan_of(5), start, arriving(sequences_of(8, 8, 8, 8, 8)))
    assert {name: (array.shape, array.dtype) for name, array in trained.difference.items()} == {
        name: (shape, np.dtype(np.float32)) for name, shape in case.shapes.items()
    }
    assert list(trained.difference) == sorted(trained.difference)
    assert trained.token_count == 5 * (8 - case.unpredicted)
    assert bytes_of(start) == before
    assert is_computed_class(trainer.computed)
    assert trainer.computed.startswith("float32/" if trainer.name != "torch" else ("float32/", "bf16/"))
    assert (trainer.name == "null") == (trained.loss is None)
    assert (trainer.name == "null") == (not any(array.any() for array in trained.difference.values()))
    await trainer.aclose()


@pytest.mark.parametrize(("arrived", "message"), [(3, "ended after 3 of 5"), (6, "more samples arrived than the 5")])
async def test_trainer_with_another_number_of_sequences_than_assigned_fails(
    case: Case, arrived: int, message: str
) -> None:
    trainer = case.trainer
    start = await trainer.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match=message):
        await trainer.train(plan_of(5), start, arriving(sequences_of(*[8] * arrived)))
    trained = await trainer.train(plan_of(5), start, arriving(sequences_of(*[8] * 5)))
    assert trained.token_count == 5 * (8 - case.unpredicted)


async def test_trainer_predicts_the_labels_that_are_not_ignored(case: Case) -> None:
    tokens = sequences_of(30)[0]
    labels = tokens.astype(np.int64)
    labels[::3] = IGNORED_LABEL

    async def batches() -> AsyncIterator[TokenBatch]:
        yield TokenBatch(tokens, np.array([0, 30], np.int64), labels=labels)

    start = await case.trainer.initial_parameters(SEED)
    trained = await case.trainer.train(plan_of(1), start, batches())
    assert trained.token_count == 20
    if case.loss_of is not None:
        assert trained.loss == pytest.approx(case.loss_of(start, tokens, labels), rel=1e-5)


async def test_gradient_norm_is_the_mean_over_the_steps_before_clipping(case: Case) -> None:
    samples = sequences_of(8, 30, 12)
    start = await case.trainer.initial_parameters(SEED)
    trained = await case.trainer.train(plan_of(3, 3, 0.0), start, arriving(samples))  # each step at the start
    norms = []
    for tokens in samples:
        learner = open_model(case.spec).learner()
        learner.load(start)
        count = learner.accumulate([Example(tokens)]).token_count
        norms.append(np.sqrt(sum(np.square(one, dtype=np.float64).sum() for one in learner.gradient.values())) / count)
    assert min(norms) > 1e-3, "clipping would change each of them"
    wanted = None if case.trainer.name == "null" else pytest.approx(np.mean(norms), rel=1e-4)
    assert trained.gradient_norm == wanted


async def test_trainer_passes_the_provider_s_error_on(case: Case) -> None:
    async def batches() -> AsyncIterator[TokenBatch]:
        yield batch_of(sequences_of(8))
        raise SourceUnavailable("gone")

    start = await case.trainer.initial_parameters(SEED)
    with pytest.raises(SourceUnavailable, match="gone"):
        await case.trainer.train(plan_of(2), start, batches())


async def test_samples_without_a_token_change_nothing(case: Case) -> None:
    start = await case.trainer.initial_parameters(SEED)
    trained = await case.trainer.train(plan_of(2), start, arriving(sequences_of(0, 0)))
    assert (trained.loss, trained.gradient_norm, trained.token_count) == (None, None, 0)
    assert not any(array.any() for array in trained.difference.values())
