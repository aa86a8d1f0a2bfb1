"""Groups the samples of an assignment into the plan's micro-batches, one for each local step, as they arrive.

The rules kept here: a plan is fulfilled exactly; too few or too many samples fail the step. A packed sample is cut into
*examples*, one for each document in it, so that a trainer cannot read across a boundary.

A pack counts for the source samples that it finishes (`TokenBatch.source_count`), so a micro-batch of packs ends with
the pack that reaches the planned number; a local step that lies within one large pack has no micro-batch.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from epochal.batching.chunking.datum_records import DatumBatch
from epochal.batching.chunking.datums import Datum
from epochal.batching.chunking.policies import BYTES, chunked
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import IGNORED_LABEL, TokenBatch
from epochal.state.errors import TrainerFailed

T = TypeVar("T")

Sequence = npt.NDArray[np.unsignedinteger[Any]]
"""Tokens, one-dimensional; a view of their batch."""


class Example(NamedTuple):
    """Tokens of one text: attention and prediction stay within it.

    Attributes:
        tokens: one-dimensional, of an integer type.
        labels: the token to predict at each position from those before it, `IGNORED_LABEL` for none; None for the
            tokens themselves.
        position_ids: each token's position, for models that know positions; None if they count from 0.
        datum: the text and the images of a sample of both, and what its loss needs; `tokens` are those of its texts.
    """

    tokens: Sequence
    labels: npt.NDArray[np.integer[Any]] | None = None
    position_ids: npt.NDArray[np.integer[Any]] | None = None
    datum: Datum | None = None

    @property
    def predicted(self) -> int:
        """Number of its tokens that are predicted."""
        return self.tokens.size if self.labels is None else int(np.count_nonzero(self.labels != IGNORED_LABEL))


class MicroBatch(NamedTuple):
    """The examples of one local step; `local_step` counts from 0."""

    local_step: int
    examples: list[Example]


async def micro_batches(plan: RoundPlan, batches: AsyncIterator[TokenBatch]) -> AsyncIterator[MicroBatch]:
    """Yield the examples of each local step, as soon as they have arrived; no tokens are copied.

    Raises:
        TrainerFailed: fewer or more samples than planned; the provider's or the fetcher's fault.
        DataError: whatever `batches` raises.
    """
    async for local_step, examples in _in_local_steps(plan, batches, _counted_samples):
        yield MicroBatch(local_step, examples)


def packed_steps(plan: RoundPlan, batches: AsyncIterator[TokenBatch]) -> AsyncIterator[tuple[int, list[TokenBatch]]]:
    """Yield the packs of each local step with its number, as `micro_batches` yields their examples. Raises as it does.

    Args:
        plan: the round's.
        batches: packs: of one sample each, or of none.
    """
    return _in_local_steps(plan, batches, _counted_packs)


async def _in_local_steps(
    plan: RoundPlan, batches: AsyncIterator[TokenBatch], counted: Callable[[TokenBatch], Iterator[tuple[int, list[T]]]]
) -> AsyncIterator[tuple[int, list[T]]]:
    """Yield the parts of each local step; `counted` yields a batch's, each with the samples for which they count."""
    ends = list(itertools.accumulate(plan.micro_batch_sizes))
    local_step = seen = 0
    pending: list[T] = []
    async for batch in batches:
        for count, parts in counted(batch):
            pending += parts
            seen += count
            if seen > plan.sequence_count:
                raise TrainerFailed(
                    f"step {plan.step}: more samples arrived than the {plan.sequence_count} that are assigned",
                    step=plan.step,
                )
            if local_step < len(ends) and seen >= ends[local_step]:
                if pending:
                    yield local_step, pending
                    pending = []
                while local_step < len(ends) and seen >= ends[local_step]:
                    local_step += 1
    if seen < plan.sequence_count:
        raise TrainerFailed(
            f"step {plan.step}: the data ended after {seen} of {plan.sequence_count} sequences", step=plan.step
        )


def portions(examples: list[Example]) -> Iterator[list[Example]]:
    """Yield the examples of a local step as a learner gets them, in order.

    Those with images are cut as requests of training are (`BYTES` in `batching/chunking/policies.py`), so that the
    images of one portion have a bounded size; the others are one portion.
    """
    if any(example.datum is None for example in examples):
        yield examples
        return
    for portion in chunked(examples, lambda example: BYTES.estimate(cast("Datum", example.datum)), BYTES.limits):
        yield portion.items


def examples_of(batch: TokenBatch) -> list[list[Example]]:
    """Return the examples of each sample: one, or its packed documents without the empty ones."""
    if not batch.sample_count:
        return []
    if isinstance(batch, DatumBatch):
        parts = zip(np.split(batch.input_ids, batch.offsets[1:-1]), batch.datums, strict=True)
        return [[Example(tokens, datum=datum)] for tokens, datum in parts]
    if batch.sequence_lengths is None:
        return [[example] for example in _cut(batch, batch.offsets[1:-1])]
    ends = np.cumsum(batch.sequence_lengths, dtype=np.int64)
    examples = _cut(batch, ends[:-1])
    # A document belongs to the sample in which it ends; an empty one could belong to two and is dropped.
    owners = np.searchsorted(batch.offsets[1:], ends, side="left")
    found: list[list[Example]] = [[] for _ in range(batch.sample_count)]
    for owner, example in zip(owners.tolist(), examples, strict=True):
        if example.tokens.size:
            found[owner].append(example)
    return found


def _counted_samples(batch: TokenBatch) -> Iterator[tuple[int, list[Example]]]:
    """Yield each sample's examples with its number of source samples; a batch of packs is yielded as one."""
    samples = examples_of(batch)
    if batch.source_count is not None:
        yield batch.source_count, [example for examples in samples for example in examples]
        return
    for examples in samples:
        yield 1, examples


def _counted_packs(batch: TokenBatch) -> Iterator[tuple[int, list[TokenBatch]]]:
    assert batch.source_count is not None, "packs count for the samples that they finish"
    yield batch.source_count, [batch] if batch.sample_count else []


def _cut(batch: TokenBatch, places: npt.NDArray[np.int64]) -> list[Example]:
    tokens = np.split(batch.input_ids, places)
    count = len(tokens)
    labels = itertools.repeat(None, count) if batch.labels is None else np.split(batch.labels, places)
    position_ids = (
        itertools.repeat(None, count)
        if batch.position_ids is None
        else map(own_positions, np.split(batch.position_ids, places))
    )
    return [Example(*parts) for parts in zip(tokens, labels, position_ids, strict=True)]


def own_positions(position_ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]] | None:
    """Return the positions of one text, or None if they count from 0."""
    return None if np.array_equal(position_ids, np.arange(position_ids.size)) else position_ids
