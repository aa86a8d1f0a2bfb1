"""The embedded model's learner: what goes in by name comes out by name."""

import numpy as np
import pytest

from batching.micro_batches import Example
from state.errors import TrainerFailed
from tests.support.local_training import ADAMW, SEED, TINY, sequences_of
from trainers.learner import InnerState, LossOptions
from trainers.ngram.learner import NgramLearner, NgramModel

EXAMPLES = [Example(tokens) for tokens in sequences_of(9, 4, 12)]


@pytest.fixture
def learner() -> NgramLearner:
    model = NgramModel(TINY)
    loaded = model.learner()
    loaded.load(model.initial_parameters(SEED))
    return loaded


def test_gradient_is_zero_before_the_first_loss(learner: NgramLearner) -> None:
    assert {name: array.shape for name, array in learner.gradient.items()} == NgramModel(TINY).shapes
    assert not any(array.any() for array in learner.gradient.values())
    assert learner.step(ADAMW, 0.1, 1) is None


def test_gradients_add_up_whatever_the_examples_are_cut_into(learner: NgramLearner) -> None:
    whole = learner.accumulate(EXAMPLES)
    gradient = {name: array.copy() for name, array in learner.gradient.items()}
    learner.discard()
    parts = [learner.accumulate([example]) for example in EXAMPLES]
    assert sum(float(part.nats) for part in parts) == pytest.approx(float(whole.nats), rel=1e-5)
    for name, array in gradient.items():
        np.testing.assert_allclose(learner.gradient[name], array, rtol=1e-3, atol=1e-5)


def test_evaluation_is_the_loss_without_a_gradient(learner: NgramLearner) -> None:
    assert learner.evaluate(EXAMPLES).nats == learner.accumulate(EXAMPLES).nats
    learner.discard()
    learner.evaluate(EXAMPLES)
    assert not any(array.any() for array in learner.gradient.values())


def test_logprobs_are_those_of_each_example_and_weigh_the_loss(learner: NgramLearner) -> None:
    weights = [np.linspace(0, 1, example.tokens.size) for example in EXAMPLES]
    learnt = learner.evaluate(EXAMPLES, LossOptions(weights, wants_logprobs=True))
    assert [logprobs.size for logprobs in learnt.logprobs] == [9, 4, 12]
    wanted = -sum(float(weight @ logprobs) for weight, logprobs in zip(weights, learnt.logprobs, strict=True))
    assert float(learnt.nats) == pytest.approx(wanted, rel=1e-5)


def test_inner_state_goes_on_in_another_learner(learner: NgramLearner) -> None:
    other = NgramLearner(TINY.context)
    learner.accumulate(EXAMPLES)
    learner.step(ADAMW, 0.1, 25)
    other.load(learner.parameters, learner.inner_state)
    for one in (learner, other):
        one.accumulate(EXAMPLES)
        one.step(ADAMW, 0.1, 25)
    assert other.inner_state.step_count == 2
    for name, array in learner.parameters.items():
        assert array.tobytes() == other.parameters[name].tobytes()


@pytest.mark.parametrize("name", ["first/unknown", "third/embedding", "first/embedding"])
def test_inner_state_of_another_model_is_refused(learner: NgramLearner, name: str) -> None:
    with pytest.raises(TrainerFailed, match="not a moment of this model's optimizer"):
        learner.load(learner.parameters, InnerState(1, {name: np.zeros((1, 2), np.float32)}))
