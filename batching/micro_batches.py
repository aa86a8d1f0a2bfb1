"""From the channel to local steps: the assignment's samples, regrouped into the plan's micro-batches as they arrive.

The rules kept here: a plan is fulfilled exactly. Data that end early or go on too long fail the step; they never
shorten or stretch it silently. And a packed sample is cut into *examples*, one for each document in it, so that
a trainer cannot read across a boundary.

Samples that come one by one fill a micro-batch to the planned number. A pack stands for as many source samples as it
finishes (`TokenBatch.source_count`), so a micro-batch of packs ends with the pack that reaches the planned number; a
local step that a larger pack has leapt over has no micro-batch.
"""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from batching.round_plan import RoundPlan
from data_providers.protocol import IGNORED_LABEL, TokenBatch
from state.errors import TrainerFailed

Sequence = npt.NDArray[np.unsignedinteger[Any]]
"""Tokens, one-dimensional; a view of the batch that brought them."""


class Example(NamedTuple):
    """Tokens that are one text: nothing outside it is attended to or predicted.

    Attributes:
        tokens: one-dimensional, of an integer type.
        labels: what is to be predicted at each place from the tokens before it, `IGNORED_LABEL` for nothing; None for
            the tokens themselves.
    """

    tokens: Sequence
    labels: npt.NDArray[np.integer[Any]] | None = None

    @property
    def predicted(self) -> int:
        """Number of its tokens that are predicted."""
        return self.tokens.size if self.labels is None else int(np.count_nonzero(self.labels != IGNORED_LABEL))


class MicroBatch(NamedTuple):
    """The examples of one local step, which is counted from 0."""

    local_step: int
    examples: list[Example]


async def micro_batches(plan: RoundPlan, batches: AsyncIterator[TokenBatch]) -> AsyncIterator[MicroBatch]:
    """The examples of each local step, as soon as they are there; no tokens are copied.

    Raises:
        TrainerFailed: fewer or more samples than planned; the provider's or the fetcher's fault.
        DataError: whatever `batches` raises.
    """
    ends = list(itertools.accumulate(plan.micro_batch_sizes))
    local_step = seen = 0
    pending: list[Example] = []
    async for batch in batches:
        for count, examples in _counted_samples(batch):
            pending += examples
            seen += count
            if seen > plan.sequence_count:
                raise TrainerFailed(
                    f"step {plan.step}: more samples arrived than the {plan.sequence_count} that are assigned",
                    step=plan.step,
                )
            if local_step < len(ends) and seen >= ends[local_step]:
                if pending:
                    yield MicroBatch(local_step, pending)
                    pending = []
                while local_step < len(ends) and seen >= ends[local_step]:
                    local_step += 1
    if seen < plan.sequence_count:
        raise TrainerFailed(
            f"step {plan.step}: the data ended after {seen} of {plan.sequence_count} sequences", step=plan.step
        )


def examples_of(batch: TokenBatch) -> list[list[Example]]:
    """The examples of each sample: one, or its packed documents, of which those without a token are left out."""
    if not batch.sample_count:
        return []
    if batch.sequence_lengths is None:
        return [[example] for example in _cut(batch, batch.offsets[1:-1])]
    ends = np.cumsum(batch.sequence_lengths, dtype=np.int64)
    examples = _cut(batch, ends[:-1])
    # A sample's documents end where it ends; one without a token belongs anywhere and is dropped.
    owners = np.searchsorted(batch.offsets[1:], ends, side="left")
    found: list[list[Example]] = [[] for _ in range(batch.sample_count)]
    for owner, example in zip(owners.tolist(), examples, strict=True):
        if example.tokens.size:
            found[owner].append(example)
    return found


def _counted_samples(batch: TokenBatch) -> Iterator[tuple[int, list[Example]]]:
    """Each sample's examples with the number of source samples that they stand for; a pack's batch as a whole."""
    samples = examples_of(batch)
    if batch.source_count is not None:
        yield batch.source_count, [example for examples in samples for example in examples]
        return
    for examples in samples:
        yield 1, examples


def _cut(batch: TokenBatch, places: npt.NDArray[np.int64]) -> list[Example]:
    tokens = np.split(batch.input_ids, places)
    if batch.labels is None:
        return [Example(part) for part in tokens]
    return [Example(*parts) for parts in zip(tokens, np.split(batch.labels, places), strict=True)]
