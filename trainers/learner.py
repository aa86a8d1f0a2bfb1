"""The learner protocol: a model in memory while it is trained.

A trainer does a client's whole part of a round. A learner does the arithmetic inside: it adds up gradients of losses
and takes optimizer steps. The trainer of one process, the processes of a mesh, the training service and
`epochal evaluate` work with any learner; none of them knows which model it is. The rules kept here:

- A loss is summed over tokens, and so is its gradient. Gradients add up, however the examples are divided; the
  optimizer step divides by the number of tokens, and may come after gradients of other learners were added.
- Tensors go in and out by name, as float32 arrays of NumPy. A learner may keep its own elsewhere, in another type: the
  mappings that it returns are read one tensor at a time, and may copy each from its device when it is asked for.
- A number that a learner returns may be an array on its device: only `float` waits for it.
- A learner waits for nothing and knows no clock; it is called from one thread at a time.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsFloat, runtime_checkable

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import InnerOptimizer
from epochal.state.errors import InternalError, TrainerFailed
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.state.replays.inner_states import NO_INNER_STATE as NO_INNER_STATE
from epochal.state.replays.inner_states import InnerState as InnerState

Shapes = Mapping[str, tuple[int, ...]]
NOT_FINITE = "not_finite"
"""The context `failure` of a `TrainerFailed` for a loss, a gradient or a parameter that is not finite."""


Proceed = Callable[[], None]
"""Called every few milliseconds of a computation; it raises to abandon it."""


def go_on() -> None:
    """Let a computation continue."""


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """The loss of some examples.

    Attributes:
        nats: summed over the predicted tokens.
        token_count: number of predicted tokens.
    """

    nats: SupportsFloat
    token_count: int

    def finite_nats(self) -> float:
        """Wait for the number and return it. Raise `TrainerFailed` unless it is finite."""
        nats = float(self.nats)
        if not math.isfinite(nats):
            raise TrainerFailed(f"the loss is {nats}", failure=NOT_FINITE)
        return nats


class Learner(Protocol):
    """A model that is being trained. Call `load` first."""

    @property
    def computed(self) -> str:
        """Precision and device with which it computes (`state/model/computed_class.py`)."""
        ...

    @property
    def parameters(self) -> Mapping[str, Float32Array]:
        """The parameters as they are now, in name order; read them before the next call."""
        ...

    @property
    def inner_state(self) -> InnerState:
        """The optimizer's state as it is now. A later `step` may change it, a later `load` does not."""
        ...

    @property
    def gradient(self) -> Mapping[str, Float32Array]:
        """The gradient of the losses summed so far, by the parameters' names; zeros before the first of them."""
        ...

    def load(self, parameters: Mapping[str, Float32Array], inner_state: InnerState = NO_INNER_STATE) -> None:
        """Copy parameters and optimizer state into the learner, and forget the gradient.

        Raises:
            TrainerFailed: the inner state does not belong to this model.
        """
        ...

    def accumulate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        """Compute the examples' loss and add its gradient.

        Args:
            examples: of any length; every token and label is below the model's vocabulary. A place is predicted from
                the places before it in its own example.
            proceed: may abandon the computation.

        Raises:
            TrainerFailed: a token or label is outside the vocabulary; nothing was added. Or the loss is not finite, and
                the gradient has to be discarded; a learner may leave this check to `Loss.finite_nats`.
        """
        ...

    def evaluate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        """Compute the examples' loss as `accumulate` does, without the gradient."""
        ...

    def replace_gradient(self, gradient: Mapping[str, Float32Array]) -> None:
        """Use another gradient, such as the sum of several learners'; the learner may change its arrays."""
        ...

    def step(self, optimizer: InnerOptimizer, learning_rate: float, divisor: float) -> SupportsFloat | None:
        """Take one optimizer step on the gradient divided by `divisor`; the gradient is zero afterwards.

        Returns:
            The L2 norm of that gradient before clipping; None if no loss was accumulated, and then nothing changes.
        """
        ...

    def discard(self) -> None:
        """Forget the gradient."""
        ...


class Model(Protocol):
    """A model's architecture and size, without parameters. `epochal.trainers.architectures.open_model` opens one."""

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens in the model's vocabulary, numbered from 0; None if every token is accepted."""
        ...

    @property
    def shapes(self) -> Shapes:
        """Shape of every parameter, by name, in name order."""
        ...

    def initial_parameters(self, seed: bytes) -> Tensors:
        """Return the parameters of step 0, float32: a function of the seed.

        Raises:
            TrainerFailed: they do not fit into this machine's memory.
        """
        ...

    def learner(self) -> Learner:
        """Return a new learner of this model, without parameters."""
        ...


@runtime_checkable
class ModelInParts(Protocol):
    """A `Model` that makes its first parameters in parts, so that they need not fit into memory."""

    def initial_parts(self, seed: bytes) -> Iterator[tuple[str, Float32Array]]:
        """Yield the names and values of `Model.initial_parameters`, in name order and in flat parts."""
        ...


MAX_TENTATIVE = 2
"""Maximum number of rounds whose results may still count: one, or two where training goes on meanwhile."""


class TentativeInnerState:
    """The optimizer's state after the last result that counted, and after those that may still count.

    Args:
        is_kept: whether rounds begin with the state; otherwise each begins without.
    """

    def __init__(self, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.committed = NO_INNER_STATE
        self._tentative: list[InnerState] = []

    @property
    def newest(self) -> InnerState:
        """The state with which the next round begins: the last proposed one, or the one that counts."""
        return self._tentative[-1] if self._tentative else self.committed

    def propose(self, state: InnerState) -> None:
        """Hold a round's state until it is known whether the round's result counts.

        Raises:
            InternalError: so many are held already whose fate was never decided; the caller's bug.
        """
        if not self.is_kept:
            return
        if len(self._tentative) >= MAX_TENTATIVE:
            raise InternalError(f"{MAX_TENTATIVE} rounds' inner states were neither kept nor rolled back")
        self._tentative.append(state)

    def commit(self) -> None:
        """Keep the oldest proposed state, if there is one."""
        if self._tentative:
            self.committed = self._tentative.pop(0)

    def roll_back(self) -> None:
        """Forget every proposed state."""
        self._tentative.clear()

    def forget(self) -> None:
        """Forget every state: the next round begins without one."""
        self.adopt(NO_INNER_STATE)

    def adopt(self, state: InnerState) -> None:
        """Begin the next round with this state, and forget every other."""
        self._tentative.clear()
        self.committed = state


class HoldsInnerState:
    """The part of a trainer that decides about its inner state (`trainers/protocol.py`)."""

    _inner_state: TentativeInnerState

    def commit_inner_state(self) -> None:
        self._inner_state.commit()

    def roll_back_inner_state(self) -> None:
        self._inner_state.roll_back()

    def forget_inner_state(self) -> None:
        self._inner_state.forget()

    @property
    def inner_state(self) -> InnerState:
        return self._inner_state.newest

    def adopt_inner_state(self, state: InnerState) -> None:
        self._inner_state.adopt(state)
