"""The trainer protocol: one client's part of a round, from the shared parameters to a difference.

A trainer knows nothing of runs, clients or the network. It is given the round's start, a plan that fixes beforehand how
the assignment is cut into local steps, and the data as it arrives. The rules kept here:

- `train` changes nothing that is shared: not the parameters that it is given, nor the trainer's inner state
  (optimizer moments, a quantisation residual), of which it works on a copy.
- That copy is *tentative*: it becomes the inner state by `commit_inner_state`, when the outcome contains the result,
  and is forgotten by `roll_back_inner_state`, or by the next `train`, when it does not (`docs/merging.md`).
- Arithmetic leaves the event loop free, and a cancelled `train` stops soon after.
"""

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from batching.round_plan import RoundPlan
from data_providers.protocol import TokenBatch
from state.errors import TrainerFailed
from state.tensors import Float32Array, Tensors, check_values


@dataclass(frozen=True, slots=True)
class LossSum:
    """A loss in nats, summed over tokens."""

    nats: float
    token_count: int


@dataclass(frozen=True, eq=False, slots=True)
class TrainedRound:
    """The result of a round's local steps.

    Attributes:
        difference: `start − end` of every parameter, float32, in name order.
        loss: mean training loss in nats per token, each token's as it was before the local step that trained on it;
            None when nothing was computed.
        token_count: tokens trained on.
    """

    difference: Tensors
    loss: float | None
    token_count: int

    @classmethod
    def between(
        cls, step: int, start: Mapping[str, Float32Array], end: Mapping[str, Float32Array], loss: LossSum
    ) -> Self:
        """The round that led from the parameters `start` to the parameters `end`.

        Raises:
            TrainerFailed: a parameter or the loss is not finite.
        """
        difference = {name: np.subtract(start[name], values) for name, values in end.items()}
        for name, values in difference.items():
            if check_values(values.reshape(-1), math.inf) is not None:
                raise TrainerFailed(f"step {step}: training made {name!a} infinite", step=step)
        if not math.isfinite(loss.nats):
            raise TrainerFailed(f"step {step}: the loss is {loss.nats}", step=step)
        return cls(difference, loss.nats / loss.token_count if loss.token_count else None, loss.token_count)


class Trainer(Protocol):
    """Takes a client's local steps. One `train` at a time; `data_providers` deliver, the step machine calls."""

    @property
    def name(self) -> str:
        """The name under which it is opened."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """Every token must be below it; None when any token will do."""
        ...

    @property
    def loads_data(self) -> bool:
        """Whether it loads the assignment's samples itself; `train` is given none then, and says which batches failed
        in the context `batch_id` of its `DataError`."""
        ...

    async def initial_parameters(self, seed: bytes) -> Tensors:
        """The parameters of step 0, made from a seed or loaded. Published once; nobody recomputes them.

        Raises:
            TrainerFailed: they cannot be made or loaded.
        """
        ...

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        """The difference after the plan's local steps, starting from `parameters`, which stay as they are.

        Args:
            plan: the client's part of the round.
            parameters: float32 by name, read-only; the round's start.
            batches: the assignment's sequences, in order, however grouped; none for a trainer that loads them itself.

        Raises:
            TrainerFailed: the step cannot be taken (tokens outside the vocabulary, data that end early or exceed the
                plan, a loss that is not finite, no memory). To be reported; the trainer stays usable.
            DataError: whatever `batches` raises, unchanged.
            InvalidInput: this client can take no step at all (its training service does not admit it); it ends.
        """
        ...

    def commit_inner_state(self) -> None:
        """Keeps the inner state of the last `train`; without one, nothing."""
        ...

    def roll_back_inner_state(self) -> None:
        """Forgets the inner state of the last `train`; without one, nothing."""
        ...

    async def aclose(self) -> None:
        """Frees threads, devices and connections; bounded."""
        ...
