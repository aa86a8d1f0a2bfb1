"""The trainer protocol: one client's part of a round, from the shared parameters to a difference.

A trainer knows nothing of runs, clients or the network. It is given the round's start, a plan that fixes beforehand how
the assignment is cut into local steps, and the data as it arrives. The rules kept here:

- `train` changes nothing that is shared: not the parameters that it is given, nor the trainer's inner state
  (optimizer moments, a quantisation residual), of which it works on a copy.
- That copy is *tentative*: it becomes the inner state by `commit_inner_state`, when the outcome contains the result,
  and is forgotten by `roll_back_inner_state` when it does not (`docs/merging.md`). The next `train` begins with the
  newest copy. With `merge.delay` two results may be undecided at once: `commit_inner_state` is about the older one, and
  `roll_back_inner_state` forgets both. Where the run goes back to an earlier replica, `forget_inner_state` forgets all.
- Arithmetic leaves the event loop free, and a cancelled `train` stops soon after.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.state.model.value_checks import check_values
from epochal.state.replays.inner_states import InnerState
from epochal.trainers.learner import NOT_FINITE, Loss


@dataclass(frozen=True, eq=False, slots=True)
class TrainedRound:
    """The result of a round's local steps.

    Attributes:
        difference: `start − end` of every parameter, float32, in name order.
        loss: mean training loss in nats per token, each token's as it was before the local step that trained on it;
            None when nothing was computed.
        token_count: tokens predicted, over which the loss is the mean.
        gradient_norm: mean over the round's optimizer steps of the gradient's L2 norm over all parameters, before
            clipping; None when no step was taken, or the trainer does not know.
        sample_tokens: tokens of the samples, without padding; None if they are not counted. Who gives the trainer its
            samples counts them; a trainer that loads them may.
    """

    difference: Tensors
    loss: float | None
    token_count: int
    gradient_norm: float | None = None
    sample_tokens: int | None = None

    @classmethod
    def between(
        cls,
        step: int,
        start: Mapping[str, Float32Array],
        end: Mapping[str, Float32Array],
        loss: Loss,
        gradient_norms: Sequence[float] = (),
    ) -> Self:
        """Return the result of the round that led from the parameters `start` to the parameters `end`.

        Args:
            step: of the round.
            start, end: float32, by the same names.
            loss: of all local steps.
            gradient_norms: of the optimizer steps, each before clipping.

        Raises:
            TrainerFailed: a parameter or the loss is not finite.
        """
        difference = {name: np.subtract(start[name], values) for name, values in end.items()}
        return cls.of(step, difference, loss, mean_norm(gradient_norms))

    @classmethod
    def of(cls, step: int, difference: Tensors, loss: Loss, gradient_norm: float | None = None) -> Self:
        """Return the result of the round whose parameters' differences are known.

        Raises:
            TrainerFailed: a parameter or the loss is not finite.
        """
        for name, values in difference.items():
            if check_values(values.reshape(-1), math.inf) is not None:
                raise TrainerFailed(f"step {step}: training made {name!a} infinite", step=step, failure=NOT_FINITE)
        nats = float(loss.nats)
        if not math.isfinite(nats):
            raise TrainerFailed(f"step {step}: the loss is {nats}", step=step, failure=NOT_FINITE)
        mean = nats / loss.token_count if loss.token_count else None
        return cls(difference, mean, loss.token_count, gradient_norm)


def mean_norm(norms: Sequence[float]) -> float | None:
    """Return the mean of the gradient's norms in a round's optimizer steps; None without one."""
    return math.fsum(norms) / len(norms) if norms else None


class Trainer(Protocol):
    """Takes a client's local steps. It is called by one task, which awaits each `train` before the next."""

    @property
    def name(self) -> str:
        """Name under which the trainer is opened, and which the client reports to the coordinator."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens in the model's vocabulary, numbered from 0; None if every token is accepted."""
        ...

    @property
    def loads_data(self) -> bool:
        """Whether the trainer loads the samples itself.

        If so, `train` ignores `batches`, and the context `batch_id` of its `DataError` says which batches failed.
        """
        ...

    @property
    def computed(self) -> str:
        """Precision and device of the last `train`, or the next one (`state/model/computed_class.py`)."""
        ...

    async def initial_parameters(self, seed: bytes) -> Tensors:
        """Return the parameters of step 0, made from a seed of 32 bytes or loaded: float32, by name.

        One client publishes them for all; they need not be the same on every machine.

        Raises:
            TrainerFailed: they cannot be made or loaded.
        """
        ...

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        """Take the plan's local steps from `parameters`, which are not changed, and return the difference.

        Args:
            plan: the client's part of the round.
            parameters: float32 by name, read-only; the round's start.
            batches: the assignment's samples, in order, in groups of any size; none where `loads_data`.

        Raises:
            TrainerFailed: the step failed (tokens outside the vocabulary, fewer or more data than planned, a loss that
                is not finite, no memory). Report it; the trainer stays usable.
            DataError: an error of `batches`, unchanged.
            InvalidInput: this client cannot take any step (its training service does not admit it) and has to end.
        """
        ...

    def commit_inner_state(self) -> None:
        """Keep the inner state of the oldest `train` that is undecided, if there is one: its result counts."""
        ...

    def roll_back_inner_state(self) -> None:
        """Forget the inner state of every undecided `train`: their results do not count."""
        ...

    def forget_inner_state(self) -> None:
        """Forget every inner state: the next `train` begins as that of a new trainer does."""
        ...

    async def aclose(self) -> None:
        """Release threads, devices and connections within a bounded time."""
        ...


@runtime_checkable
class RevealsInnerState(Protocol):
    """A trainer whose inner state can be read and put back, so that a round can be trained again from it."""

    @property
    def inner_state(self) -> InnerState:
        """The state with which the next `train` begins; read it before that."""
        ...

    def adopt_inner_state(self, state: InnerState) -> None:
        """Begin the next `train` with this state, and forget every other. One of another model fails that `train`."""
        ...
