"""From the channel to local steps: the assignment's sequences, regrouped into the plan's micro-batches as they arrive.

The rule kept here: a plan is fulfilled exactly. Data that end early or go on too long fail the step; they never shorten
or stretch it silently.
"""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt

from data_providers.protocol import TokenBatch
from run_manager.trainers.protocol import RoundPlan
from state.errors import TrainerFailed

Sequence = npt.NDArray[np.unsignedinteger[Any]]
"""One sample's tokens, one-dimensional; a view of the batch that brought it."""


async def micro_batches(plan: RoundPlan, batches: AsyncIterator[TokenBatch]) -> AsyncIterator[list[Sequence]]:
    """The sequences of each local step, as soon as they are there; no tokens are copied.

    Raises:
        TrainerFailed: fewer or more sequences than planned, the provider's or the fetcher's fault; or labels or
            packed documents, which would be ignored silently.
        DataError: whatever `batches` raises.
    """
    sizes = iter(plan.micro_batch_sizes)
    wanted = next(sizes)
    pending: list[Sequence] = []
    seen = 0
    async for batch in batches:
        if batch.labels is not None:
            raise TrainerFailed(f"step {plan.step}: the data bring labels; this trainer predicts the next token only")
        if batch.sequence_lengths is not None:
            raise TrainerFailed(
                f"step {plan.step}: the data bring packed documents (sequence_lengths); this trainer would read across "
                "their boundaries"
            )
        sequences = np.split(batch.input_ids, batch.offsets[1:-1]) if batch.sample_count else []
        seen += len(sequences)
        if seen > plan.sequence_count:
            raise TrainerFailed(
                f"step {plan.step}: {seen} sequences arrived where {plan.sequence_count} are assigned", step=plan.step
            )
        pending += sequences
        while wanted and len(pending) >= wanted:
            yield pending[:wanted]
            pending = pending[wanted:]
            wanted = next(sizes, 0)
    if seen < plan.sequence_count:
        raise TrainerFailed(
            f"step {plan.step}: the data ended after {seen} of {plan.sequence_count} sequences", step=plan.step
        )
