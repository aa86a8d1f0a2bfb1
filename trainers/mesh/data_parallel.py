"""Any learner on a mesh: each process has the whole model, gradients are added up, and one takes the steps."""

from collections.abc import Mapping, Sequence

import numpy as np

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import InnerOptimizer
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.learner import InnerState, Loss, Model
from epochal.trainers.mesh.collectives import MeshCollectives
from epochal.trainers.mesh.mesh_messages import INNER, PARAMETERS, Part
from epochal.trainers.protocol import mean_norm


class SummedLearner:
    """One process's part of a model that every process holds.

    At the end of a local step the gradients are added up in the first process, which takes the optimizer step and gives
    the parameters to the others.

    Args:
        collectives: connects the process to the others.
        model: the model to train.
        optimizer: None leaves the parameters as they are.
    """

    def __init__(self, collectives: MeshCollectives, model: Model, optimizer: InnerOptimizer | None) -> None:
        self._collectives = collectives
        self._learner = model.learner()
        self.computed = self._learner.computed
        self._optimizer = optimizer
        self._shapes = model.shapes
        self._received: dict[Part, Tensors] = {PARAMETERS: {}, INNER: {}}
        self._step_sums, self._sums = np.zeros(2), np.zeros(2)
        self._norms: list[float] = []

    def open(self) -> None:
        """Do nothing: the learner is open."""

    def receive(self, part: Part, name: str, values: Float32Array | None) -> None:
        """Take a tensor of the round's start; only the first process is given its values."""
        if part == PARAMETERS:
            values = np.empty(self._shapes[name], np.float32) if values is None else values
            self._collectives.from_first(values)
        if values is not None:
            self._received[part][name] = values

    def begin(self, step_count: int) -> None:
        """Begin a round with the received tensors. Raise `TrainerFailed` if the state is not this model's."""
        received, self._received = self._received, {PARAMETERS: {}, INNER: {}}
        self._learner.load(received[PARAMETERS], InnerState(step_count, received[INNER]))
        self._step_sums, self._sums, self._norms = np.zeros(2), np.zeros(2), []

    def add(self, examples: Sequence[Example]) -> None:
        """Compute on examples of the local step. Raise `TrainerFailed` if their loss is not finite."""
        loss = self._learner.accumulate(examples)
        self._step_sums += (loss.finite_nats(), loss.token_count)

    def step(self, number: int, learning_rate: float) -> None:
        """Take the optimizer step on the sum of all gradients."""
        del number
        collectives, learner, sums = self._collectives, self._learner, self._step_sums
        self._step_sums = np.zeros(2)
        collectives.sum_to_first(sums)
        self._sums += sums
        if self._optimizer is None:
            learner.discard()
            return
        summed: Tensors = {}
        for name, gradient in learner.gradient.items():
            summed[name] = np.array(gradient, np.float32, order="C")
            collectives.sum_to_first(summed[name])
        if collectives.is_first:
            learner.replace_gradient(summed)
            norm = learner.step(self._optimizer, learning_rate, sums[1]) if sums[1] else None
            self._norms += [] if norm is None else [float(norm)]
        self._share(learner.parameters)

    def finish(self) -> tuple[Loss, float | None]:
        """Return the loss of the round and the mean norm of its gradients, in the first process."""
        return Loss(float(self._sums[0]), int(self._sums[1])), mean_norm(self._norms)

    @property
    def step_count(self) -> int:
        """The optimizer's step count, in the first process."""
        return self._learner.inner_state.step_count

    @property
    def inner_names(self) -> tuple[str, ...]:
        """The names of the optimizer's tensors, in the first process."""
        return tuple(self._learner.inner_state.tensors) if self._collectives.is_first else ()

    def whole(self, part: Part, name: str) -> Float32Array | None:
        """Return a tensor as it is now, in the first process."""
        if not self._collectives.is_first:
            return None
        learner = self._learner
        return (learner.parameters if part == PARAMETERS else learner.inner_state.tensors)[name]

    def _share(self, parameters: Mapping[str, Float32Array]) -> None:
        """Give the first process's parameters to the others."""
        shared: Tensors = {}
        for name, shape in self._shapes.items():
            is_first = self._collectives.is_first
            shared[name] = np.array(parameters[name], np.float32) if is_first else np.empty(shape, np.float32)
            self._collectives.from_first(shared[name])
        if not self._collectives.is_first:
            self._learner.load(shared)
