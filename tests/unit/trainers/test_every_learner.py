"""What every learner does: what goes in by name comes out by name, and gradients add up."""

from dataclasses import dataclass

import numpy as np
import pytest

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import InnerOptimizer
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import InnerState, Learner, Model
from epochal.trainers.ngram.learner import NgramModel
from tests.support.heavy import need_module
from tests.support.models.local_training import ADAMW, MUON, SEED, TINY, sequences_of
from tests.support.models.tiny_llama import LLAMA_SPEC

EXAMPLES = [Example(tokens) for tokens in sequences_of(9, 4, 12)]


@dataclass
class Case:
    """A model, a learner of it with its first parameters, the name of one of them, and the optimizer."""

    model: Model
    start: Tensors
    learner: Learner
    name: str
    optimizer: InnerOptimizer


def _id(param: tuple[str, InnerOptimizer]) -> str:
    return f"{param[0]}-{param[1].variant}"


STARTS: dict[str, Tensors] = {}


@pytest.fixture(params=[(name, optimizer) for name in ("ngram", "llama") for optimizer in (ADAMW, MUON)], ids=_id)
def case(request: pytest.FixtureRequest) -> Case:
    kind, optimizer = request.param
    if kind == "llama":
        need_module("transformers")
    model: Model = NgramModel(TINY) if kind == "ngram" else open_model(LLAMA_SPEC)
    start = STARTS.setdefault(kind, model.initial_parameters(SEED))
    learner = model.learner()
    learner.load(start)
    return Case(model, start, learner, next(name for name, shape in model.shapes.items() if len(shape) == 2), optimizer)


def copy_of(tensors: object) -> Tensors:
    assert hasattr(tensors, "items")
    return {name: array.copy() for name, array in tensors.items()}


def train(case: Case, steps: int = 1, other: Learner | None = None) -> None:
    learner = other or case.learner
    for _ in range(steps):
        loss = learner.accumulate(EXAMPLES)
        learner.step(case.optimizer, 0.1, loss.token_count)


def test_gradient_is_zero_before_the_first_loss(case: Case) -> None:
    assert {name: array.shape for name, array in case.learner.gradient.items()} == dict(case.model.shapes)
    assert not any(array.any() for array in case.learner.gradient.values())
    assert case.learner.step(case.optimizer, 0.1, 1) is None


def test_parameters_are_those_that_were_loaded_in_name_order(case: Case) -> None:
    assert list(case.learner.parameters) == sorted(case.model.shapes)
    for name, array in case.learner.parameters.items():
        assert array.tobytes() == case.start[name].tobytes()


def test_training_leaves_the_arrays_that_were_loaded_as_they_are(case: Case) -> None:
    before = copy_of(case.start)
    train(case)
    assert all(array.tobytes() == case.start[name].tobytes() for name, array in before.items())
    assert case.learner.parameters[case.name].tobytes() != before[case.name].tobytes()


def test_gradients_add_up_whatever_the_examples_are_cut_into(case: Case) -> None:
    whole = case.learner.accumulate(EXAMPLES)
    gradient = copy_of(case.learner.gradient)
    case.learner.discard()
    parts = [case.learner.accumulate([example]) for example in EXAMPLES]
    assert sum(float(part.nats) for part in parts) == pytest.approx(float(whole.nats), rel=1e-5)
    for name, array in gradient.items():
        np.testing.assert_allclose(case.learner.gradient[name], array, rtol=1e-3, atol=1e-5)


def test_evaluation_is_the_loss_without_a_gradient(case: Case) -> None:
    evaluated = float(case.learner.evaluate(EXAMPLES).nats)
    assert evaluated == pytest.approx(float(case.learner.accumulate(EXAMPLES).nats), rel=1e-6)
    case.learner.discard()
    case.learner.evaluate(EXAMPLES)
    assert not any(array.any() for array in case.learner.gradient.values())


def test_gradient_that_is_replaced_is_the_one_that_counts(case: Case) -> None:
    case.learner.accumulate(EXAMPLES)
    halved = {name: array * np.float32(0.5) for name, array in case.learner.gradient.items()}
    whole = float(case.learner.step(case.optimizer, 0.1, 1) or 0)
    case.learner.load(case.start)
    case.learner.replace_gradient(halved)
    assert float(case.learner.step(case.optimizer, 0.1, 1) or 0) == pytest.approx(whole / 2, rel=1e-5)


def test_inner_state_goes_on_in_another_learner(case: Case) -> None:
    other = case.model.learner()
    train(case)
    other.load(case.learner.parameters, case.learner.inner_state)
    for one in (case.learner, other):
        train(case, 1, one)
    assert other.inner_state.step_count == 2
    for name, array in case.learner.parameters.items():
        np.testing.assert_allclose(other.parameters[name], array, rtol=1e-6, atol=1e-7)


def test_inner_state_that_was_shown_outlives_the_next_load(case: Case) -> None:
    train(case)
    shown, between = case.learner.inner_state, copy_of(case.learner.parameters)
    wanted = copy_of(shown.tensors)
    case.learner.load(between, shown)
    train(case, 2)
    assert all(shown.tensors[name].tobytes() == array.tobytes() for name, array in wanted.items())
    first = copy_of(case.learner.parameters)
    case.learner.load(between, shown)
    assert case.learner.inner_state.step_count == 1
    train(case, 2)
    for name, array in first.items():
        np.testing.assert_allclose(case.learner.parameters[name], array, rtol=1e-6, atol=1e-7)


def test_load_without_an_inner_state_begins_without(case: Case) -> None:
    train(case)
    first = copy_of(case.learner.parameters)
    case.learner.load(case.start)
    assert case.learner.inner_state.step_count == 0
    train(case)
    for name, array in first.items():
        np.testing.assert_allclose(case.learner.parameters[name], array, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["first/unknown", "third/{}", "first/{}"])
def test_inner_state_of_another_model_is_refused(case: Case, name: str) -> None:
    other = {name.format(case.name): np.zeros((1, 2), np.float32)}
    with pytest.raises(TrainerFailed, match="not a moment of this model's optimizer"):
        case.learner.load(case.start, InnerState(1, other))
