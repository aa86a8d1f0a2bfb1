"""The learner protocol: one model while it learns, its parameters in memory.

A trainer takes a client's whole part of a round. A learner is the arithmetic inside: it adds up gradients of losses and
takes optimizer steps. The trainer of one process, the processes of a mesh, the training service, its `tinker` wire and
`epochal evaluate` work with any learner; none of them knows which model it is. The rules kept here:

- A loss is summed over tokens, and so is its gradient. Gradients add up, whatever the examples are cut into; the
  optimizer step divides by the number of tokens, and may come after gradients of other learners were added.
- Tensors go in and out by name, as float32 arrays of NumPy. A learner may keep its own elsewhere, in another type: the
  mappings that it returns are read one tensor at a time, and may copy each from its device when it is asked for.
- A number that a learner returns may be an array of its device: `float` waits for it, and nothing else has to.
- A learner waits for nothing and knows no clock; it is called from one thread at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat

import numpy as np
import numpy.typing as npt

from batching.micro_batches import Example
from state.config.model import AdamW
from state.errors import TrainerFailed
from state.tensors import Float32Array, Tensors

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class InnerState:
    """State that an optimizer keeps from step to step.

    Attributes:
        step_count: optimizer steps taken.
        tensors: its moments, float32, by names of the learner's choice; empty before the first step.
    """

    step_count: int = 0
    tensors: Mapping[str, Float32Array] = field(default_factory=dict)


NO_INNER_STATE = InnerState()


@dataclass(frozen=True, slots=True, eq=False)
class LossOptions:
    """Options of one computation of a loss.

    Attributes:
        weights: one flat float array for each example: the factor of the loss at each of its places. None: all 1.
        wants_logprobs: whether `Learnt.logprobs` is wanted.
        proceed: called every few milliseconds; it raises to abandon the computation.
    """

    weights: Sequence[npt.NDArray[np.floating[Any]]] | None = None
    wants_logprobs: bool = False
    proceed: Callable[[], None] = lambda: None


PLAIN_LOSS = LossOptions()


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """The loss of some examples.

    Attributes:
        loss_sum: weighted loss in nats, summed over the predicted tokens.
        token_count: number of predicted tokens.
        logprobs: for each example the log-probability (nats) of the label at each of its places, 0 where nothing is
            predicted; empty unless wanted.
    """

    loss_sum: SupportsFloat
    token_count: int
    logprobs: Sequence[Float32Array] = ()

    def finite_loss(self) -> float:
        """Wait for the loss. Raise `TrainerFailed` unless it is finite."""
        loss = float(self.loss_sum)
        if not math.isfinite(loss):
            raise TrainerFailed(f"the loss is {loss}")
        return loss


class Learner(Protocol):
    """A model while it learns. `load` comes first."""

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
        """Take over copies of parameters and optimizer state, and forget the gradient.

        Raises:
            TrainerFailed: the inner state is not one of this model's.
        """
        ...

    def accumulate(self, examples: Sequence[Example], options: LossOptions = PLAIN_LOSS) -> Learnt:
        """Compute the examples' loss and add its gradient.

        Args:
            examples: of any length; every token and label is below the model's vocabulary. A place is predicted from
                the places before it in its own example.
            options: weights, and whether each place's log-probability is wanted.

        Raises:
            TrainerFailed: a token or label is outside the vocabulary; nothing was added. Or the loss is not finite, and
                the gradient has to be discarded; a learner may leave that to whoever reads the loss.
        """
        ...

    def evaluate(self, examples: Sequence[Example], options: LossOptions = PLAIN_LOSS) -> Learnt:
        """Compute the examples' loss as `accumulate` does, without the gradient."""
        ...

    def replace_gradient(self, gradient: Mapping[str, Float32Array]) -> None:
        """Take over another gradient, such as the sum of several learners'."""
        ...

    def step(self, optimizer: AdamW, learning_rate: float, divisor: float) -> SupportsFloat | None:
        """Take one optimizer step on the gradient divided by `divisor`, and use the gradient up.

        Returns:
            The L2 norm of that gradient before clipping; None without a gradient, where nothing changes.
        """
        ...

    def discard(self) -> None:
        """Forget the gradient."""
        ...


class Model(Protocol):
    """Everything about a model but its parameters. `trainers.architectures.open_model` opens one."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that it knows, from 0."""
        ...

    @property
    def shapes(self) -> Shapes:
        """Shape of every parameter, by name, in name order."""
        ...

    def initial_parameters(self, seed: bytes) -> Tensors:
        """Make the parameters of step 0, float32: a function of the seed.

        Raises:
            TrainerFailed: they do not fit into this machine's memory.
        """
        ...

    def learner(self) -> Learner:
        """Return a learner of this model, its parameters not loaded yet."""
        ...


class TentativeInnerState:
    """A client's inner state: that of its last result that counted, and that of a result which may come to count.

    Args:
        is_kept: whether rounds begin with it; otherwise each begins with none.
    """

    def __init__(self, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.committed = NO_INNER_STATE
        self._tentative: InnerState | None = None

    def propose(self, state: InnerState) -> None:
        """Hold a round's state until it is known whether its result counts."""
        if self.is_kept:
            self._tentative = state

    def commit(self) -> None:
        """Keep the proposed state, if there is one."""
        if self._tentative is not None:
            self.committed = self._tentative
            self._tentative = None

    def roll_back(self) -> None:
        """Forget the proposed state."""
        self._tentative = None
