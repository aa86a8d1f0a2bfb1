"""The embedded model's `Model` and `Learner`, in NumPy."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.state.config.model_table import AdamW, NgramConfig
from epochal.state.errors import TrainerFailed
from epochal.state.model.computed_class import FLOAT32_CPU
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.learner import NO_INNER_STATE, InnerState, Loss, Proceed, Shapes, go_on
from epochal.trainers.ngram.adamw import FIRST, SECOND, AdamWState, adamw_step
from epochal.trainers.ngram.model import (
    VOCABULARY,
    Gradient,
    add_gradient,
    initial_parameters,
    initial_parts,
    next_logits,
    padded_targets,
    padded_tokens,
    parameter_shapes,
)


class NgramModel:
    """The embedded model of one size."""

    vocabulary = VOCABULARY

    def __init__(self, config: NgramConfig) -> None:
        self._config = config

    @property
    def shapes(self) -> Shapes:
        return parameter_shapes(self._config)

    def initial_parameters(self, seed: bytes) -> Tensors:
        return initial_parameters(self._config, seed)

    def initial_parts(self, seed: bytes) -> Iterator[tuple[str, Float32Array]]:
        return initial_parts(self._config, seed)

    def learner(self) -> "NgramLearner":
        return NgramLearner(self._config.context)


class NgramContinuation:
    """A `Continuation` of the embedded model, of which the last tokens count.

    Args:
        parameters: of the model.
        count: number of tokens from which the next one is predicted.
    """

    context = None

    def __init__(self, parameters: Mapping[str, Float32Array], count: int) -> None:
        self._parameters = parameters
        self._count = count
        self._tokens: list[int] = []

    def logits(self, tokens: Sequence[int]) -> Float32Array:
        self._tokens = [*self._tokens, *tokens][-self._count :]
        with np.errstate(all="ignore"), _blas().limit(limits=1, user_api="blas"):
            found: Float32Array = next_logits(self._parameters, np.array(self._tokens, np.uint16))
        return found


class NgramLearner:
    """The embedded model while it is trained. `context` is that of its `NgramConfig`."""

    computed = FLOAT32_CPU

    def __init__(self, context: int) -> None:
        self.parameters: Tensors = {}
        self._context = context
        self._gradient: Gradient = {}
        self._has_gradient = False
        self._state = AdamWState()

    @property
    def inner_state(self) -> InnerState:
        return InnerState(self._state.step_count, self._state.moments)

    @property
    def gradient(self) -> Gradient:
        return self._gradient or {name: np.zeros_like(array) for name, array in self.parameters.items()}

    def load(self, parameters: Mapping[str, Float32Array], inner_state: InnerState = NO_INNER_STATE) -> None:
        shapes = {prefix + name: array.shape for prefix in (FIRST, SECOND) for name, array in parameters.items()}
        for key, array in inner_state.tensors.items():
            if shapes.get(key) != array.shape:
                raise TrainerFailed(f"{key!a} is not a moment of this model's optimizer")
        moments = {key: array.copy() for key, array in inner_state.tensors.items()}
        self._state = AdamWState(inner_state.step_count, moments)
        self.parameters = {name: parameters[name].copy() for name in sorted(parameters)}
        self.discard()

    def accumulate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        return self._loss(examples, proceed, backward=True)

    def evaluate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        return self._loss(examples, proceed, backward=False)

    def continuation(self) -> NgramContinuation:
        """Return a sequence for the model to continue."""
        return NgramContinuation(self.parameters, self._context)

    def replace_gradient(self, gradient: Mapping[str, Float32Array]) -> None:
        self._gradient, self._has_gradient = dict(gradient), True

    def step(self, optimizer: AdamW, learning_rate: float, divisor: float) -> float | None:
        if not self._has_gradient:
            return None
        with np.errstate(all="ignore"):
            for array in self._gradient.values():
                array /= array.dtype.type(divisor)
            norm = adamw_step(self.parameters, self._gradient, self._state, optimizer, learning_rate)
        self._has_gradient = False
        for array in self._gradient.values():  # kept for the next step: given back, it would be paged in again
            array.fill(0)
        return norm

    def discard(self) -> None:
        self._gradient, self._has_gradient = {}, False

    def _loss(self, examples: Sequence[Example], proceed: Proceed, *, backward: bool) -> Loss:
        _check_vocabulary(examples)
        if not any(example.predicted for example in examples):
            return Loss(0.0, 0)
        if backward:
            self._gradient, self._has_gradient = self.gradient, True
        padded = padded_tokens([example.tokens for example in examples], self._context)
        targets = padded_targets(examples, self._context)
        gradient = self._gradient if backward else None
        # With matrices this small, several BLAS threads mostly wait for each other: tenfold on a busy machine.
        with np.errstate(all="ignore"), _blas().limit(limits=1, user_api="blas"):  # what is not finite is found below
            nats, token_count = add_gradient(self.parameters, padded, targets, gradient, proceed)
        loss = Loss(nats, token_count)
        loss.finite_nats()
        return loss


@cache
def _blas() -> ThreadpoolController:
    """Return the control of the process's BLAS threads; finding the libraries takes a millisecond, so once."""
    return ThreadpoolController()


def _check_vocabulary(examples: Sequence[Example]) -> None:
    """Raise `TrainerFailed` unless the model knows every token and label."""
    for example in examples:
        for name, values in (("token", example.tokens), ("label", example.labels)):
            if values is None:
                continue
            wrong = (values >= VOCABULARY) | ((values < 0) & (values != IGNORED_LABEL))
            if wrong.any():
                found = int(values[wrong][0])
                raise TrainerFailed(f"{name} {found}; the model knows bytes only, 0 to {VOCABULARY - 1}")
