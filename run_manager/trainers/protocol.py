"""The trainer protocol: one client's part of a round, from the shared parameters to a difference.

A trainer knows nothing of runs, clients or the network. It is given the round's start, a plan that fixes beforehand how
the assignment is cut into local steps, and the data as it arrives. The rules kept here:

- `train` changes nothing that is shared: not the parameters that it is given, nor the trainer's inner state
  (optimizer moments, a quantisation residual), of which it works on a copy.
- That copy is *tentative*: it becomes the inner state by `commit_inner_state`, when the outcome contains the result,
  and is forgotten by `roll_back_inner_state`, or by the next `train`, when it does not (DESIGN §6, "Merging").
- Arithmetic leaves the event loop free, and a cancelled `train` stops soon after.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from data_providers.protocol import TokenBatch
from state.errors import InternalError
from state.intervals import BatchId, total_batches
from state.model_config import LrSchedule
from state.schedule import learning_rate
from state.tensors import Float32Array, Tensors


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One client's part of a round, known before the first sample arrives.

    Attributes:
        step: the round's step, from 1.
        assignment: the client's batches, in the order in which the data arrives; not empty.
        data_indices_per_batch: sequences per batch.
        learning_rates: the inner learning rate of each local step; there are never more steps than sequences.
    """

    step: int
    assignment: tuple[BatchId, ...]
    data_indices_per_batch: int
    learning_rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.learning_rates) <= self.sequence_count:
            raise InternalError(f"{len(self.learning_rates)} local steps over {self.sequence_count} sequences")

    @property
    def sequence_count(self) -> int:
        """The sequences of the whole assignment."""
        return total_batches(self.assignment) * self.data_indices_per_batch

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """The sequences of each local step, in order: nearly equal, the larger ones first."""
        size, larger = divmod(self.sequence_count, len(self.learning_rates))
        return tuple(size + (step < larger) for step in range(len(self.learning_rates)))


def plan_round(
    step: int,
    assignment: tuple[BatchId, ...],
    data_indices_per_batch: int,
    local_steps: int,
    schedule: LrSchedule,
) -> RoundPlan:
    """The plan for a round: `local_steps` optimizer steps, or as many as there are sequences.

    Local step *i* (from 0) of round `step` takes the schedule's position `(step − 1) × local_steps + i`, so that the
    schedule does not depend on how large an assignment was.

    Raises:
        InternalError: an empty assignment; the caller's bug.
    """
    sequence_count = total_batches(assignment) * data_indices_per_batch
    first = (step - 1) * local_steps
    rates = tuple(learning_rate(schedule, first + i) for i in range(min(local_steps, sequence_count)))
    return RoundPlan(step, assignment, data_indices_per_batch, rates)


@dataclass(frozen=True, eq=False, slots=True)
class TrainedRound:
    """What local steps came to.

    Attributes:
        difference: `start − end` of every parameter, float32, in name order.
        loss: mean training loss in nats per token, each token's as it was before the local step that trained on it;
            None when nothing was computed.
        token_count: tokens trained on.
    """

    difference: Tensors
    loss: float | None
    token_count: int


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
