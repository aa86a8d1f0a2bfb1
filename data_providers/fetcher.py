"""Fetches the samples of a data assignment in the background, ahead of the trainer, with retries.

`fetch_data` turns batch numbers into data indices, cuts them into requests of a bounded number of samples, and returns
the receiving end of a bounded channel at once. One task in the caller's task group sends the requests one after the
other, so batches arrive in the order of the assignment. A request that fails temporarily is retried with backoff; one
that fails permanently is narrowed to the first batch that fails by itself. The receiver then raises the provider's
error, and its `failed_batch` has the batches.
"""

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.next_round_samples import LARGEST_TOKEN_BYTES, AheadSamples, joined
from epochal.data_providers.protocol import (
    IGNORED_LABEL,
    MAX_REQUEST_BYTES,
    CorruptData,
    DataProvider,
    OutOfRange,
    Rejected,
    SourceUnavailable,
    TokenBatch,
    expecting,
)
from epochal.data_providers.waits import WaitTimes, timed_request
from epochal.runtime.retry import Jitter, RetryPolicy
from epochal.state.config.model_table import DataType
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError, FailureKind
from epochal.state.intervals import BatchId, DataIds, subtract, whole_batches
from epochal.state.reader_limits import MAX_LINE_BYTES

log = logging.getLogger(__name__)

MAX_SAMPLES_PER_REQUEST = 256
REQUEST_BYTES = 8 * 1024**2
"""Approximate maximum size of the answer to one request; a larger sample is requested alone."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Options for fetching samples: `[client]` of a state file, and the size of a batch.

    Attributes:
        data_indices_per_batch: samples of one batch.
        samples_per_request: maximum number of samples of one `get_samples`.
        attempts: maximum number of attempts of one request.
        timeout_s: seconds for one attempt.
        prefetch_requests: maximum number of answers that wait for the trainer.
    """

    data_indices_per_batch: int
    samples_per_request: int
    attempts: int
    timeout_s: float
    prefetch_requests: int

    @classmethod
    def of(cls, state: StateFile, data_indices_per_batch: int | None = None) -> "FetchSettings":
        """Return the settings of a run, or the same with batches of another size."""
        llm = state.model.LLM
        fitting = REQUEST_BYTES // (llm.max_seq_len * LARGEST_TOKEN_BYTES)
        if llm.data_type is DataType.MULTIMODAL:
            fitting = MAX_REQUEST_BYTES // (2 * MAX_LINE_BYTES)  # tokens do not say how large images are
        return cls(
            data_indices_per_batch=data_indices_per_batch or state.config.data_indices_per_batch,
            samples_per_request=max(1, min(fitting, MAX_SAMPLES_PER_REQUEST)),
            attempts=state.client.fetch_attempts,
            timeout_s=state.client.fetch_timeout_s,
            prefetch_requests=state.client.prefetch_requests,
        )


@dataclass(frozen=True, slots=True)
class _End:
    """The channel's last item. `error` is the reason why the data end early; None if they are complete."""

    error: DataError | None = None
    batch_id: BatchId | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """Samples, and the part of their request's time that was decoding."""

    batch: TokenBatch
    decoding_part: float


_Item: TypeAlias = _Answer | _End


def plan_requests(data_assignments: Sequence[BatchId], settings: FetchSettings) -> Iterator[DataIds]:
    """Yield the requests for an assignment in order, each of whole batches if a batch fits into a request."""
    k = settings.data_indices_per_batch
    for interval in data_assignments:
        for group in interval.to_data_ids(k).pieces(whole_batches(settings.samples_per_request, k)):
            yield from group.pieces(settings.samples_per_request)


def failure_kind(error: DataError) -> FailureKind:
    """Return the name of a provider's error in failure reports."""
    if isinstance(error, SourceUnavailable | CorruptData | OutOfRange | Rejected):
        return error.kind
    return "unavailable"


def check_vocabulary(batch: TokenBatch, first_index: int, vocabulary: int) -> None:
    """Raise `CorruptData` unless every token is below `vocabulary`, and every label too or `IGNORED_LABEL`.

    `first_index` is the first sample's data index.
    """
    tokens: NDArray[np.integer[Any]] = batch.input_ids
    name = "token"
    wrong = tokens >= vocabulary if tokens.size and int(tokens.max()) >= vocabulary else None
    if wrong is None and batch.labels is not None and batch.labels.size:
        tokens, name = batch.labels, "label"
        if int(tokens.max()) >= vocabulary or int(tokens.min()) < 0:
            wrong = ((tokens < 0) & (tokens != IGNORED_LABEL)) | (tokens >= vocabulary)
    if wrong is None or not wrong.any():
        return
    at = int(np.argmax(wrong))
    sample = int(np.searchsorted(batch.offsets, at, side="right")) - 1
    index = first_index + sample
    raise CorruptData(
        f"data index {index} has {name} {int(tokens[at])} at position {at - int(batch.offsets[sample])}; "
        f"the model's vocabulary allows 0 to {vocabulary - 1}",
        data_index=index,
        **{name: int(tokens[at])},
        vocabulary=vocabulary,
    )


class BatchReceiver:
    """The samples of a data assignment, in order, as they arrive: an asynchronous iterator of `TokenBatch`.

    Attributes:
        failed_batch: the batches that could not be fetched, once the iteration has raised; None before.
        waited: seconds that the receiver spent waiting for samples, by cause.
        token_count: number of tokens of the samples so far.
    """

    def __init__(self, channel: asyncio.Queue[_Item], filling: asyncio.Task[None]) -> None:
        self._channel = channel
        self._filling = filling
        self._end: _End | None = None
        self.failed_batch: BatchId | None = None
        self.waited = WaitTimes()
        self.token_count = 0

    def __aiter__(self) -> "BatchReceiver":
        return self

    async def __anext__(self) -> TokenBatch:
        """Return the next samples, or raise the provider's `DataError`, after which no data follow."""
        if self._end is None:
            item = await self._next_item()
            if not isinstance(item, _End):
                self.token_count += len(item.batch.input_ids)
                return item.batch
            self._end = item
        if self._end.error is None:
            raise StopAsyncIteration
        self.failed_batch = self._end.batch_id
        raise self._end.error

    async def _next_item(self) -> _Item:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        decoding_part = 0.0
        try:
            item = await self._channel.get()
            decoding_part = 0.0 if isinstance(item, _End) else item.decoding_part
            return item
        finally:
            self.waited.add_answer(loop.time() - started_s, decoding_part)

    def close(self) -> None:
        """Stop fetching. Samples that were not received yet are dropped."""
        self._filling.cancel()


class DataFetcher:
    """Fetches data assignments from a provider, ahead of the trainer and with retries. Does not close the provider.

    Args:
        jitter: random numbers in [0, 1), for the delay of retries.
        vocabulary: number of the model's tokens; a token outside it is corrupt data. None to accept any token.
        ahead: samples that were fetched ahead, which are used where they are the assignment's. None without any.
    """

    def __init__(
        self,
        provider: DataProvider,
        settings: FetchSettings,
        jitter: Jitter,
        vocabulary: int | None = None,
        ahead: AheadSamples | None = None,
    ) -> None:
        self._provider = provider
        self._settings = settings
        self._retry = RetryPolicy(jitter=jitter, attempts=settings.attempts, bound_s=math.inf)
        self._vocabulary = vocabulary
        self._ahead = ahead

    def fetch_data(self, data_assignments: Sequence[BatchId], group: asyncio.TaskGroup) -> BatchReceiver:
        """Start fetching a client's batches of the round in a task of `group`, and return the samples as they arrive.

        The group does not end before the receiver is exhausted or closed.
        """
        if self._ahead is not None:
            self._ahead.hold_back()
            self._ahead.keep(
                interval.to_data_ids(self._settings.data_indices_per_batch) for interval in data_assignments
            )
        channel: asyncio.Queue[_Item] = asyncio.Queue(self._settings.prefetch_requests)
        return BatchReceiver(channel, group.create_task(self._fill(channel, tuple(data_assignments))))

    async def _fill(self, channel: asyncio.Queue[_Item], data_assignments: tuple[BatchId, ...]) -> None:
        k, at_a_time = self._settings.data_indices_per_batch, self._settings.samples_per_request
        held = () if self._ahead is None else self._ahead.held
        intervals = subtract([interval.to_data_ids(k) for interval in data_assignments], held)
        try:
            with expecting(self._provider, intervals, min(whole_batches(at_a_time, k), at_a_time)):
                await channel.put(await self._fill_in_order(channel, data_assignments))
        finally:
            self._let_others_fetch()

    async def _fill_in_order(self, channel: asyncio.Queue[_Item], data_assignments: tuple[BatchId, ...]) -> _End:
        requests = list(plan_requests(data_assignments, self._settings))
        for number, request in enumerate(requests, 1):
            try:
                with timed_request() as times:
                    batch = await self._get_with_retries(request)
            except DataError as error:
                blamed = await self._narrow(request.to_batches(self._settings.data_indices_per_batch), error)
                log.warning("fetch_failed", extra={"batch_id": str(blamed), "reason": str(error)})
                return _End(error, blamed)
            if number == len(requests):
                self._let_others_fetch()  # before the last answers have room in the channel
            await channel.put(_Answer(batch, times.decoding_part))
        return _End()

    def _let_others_fetch(self) -> None:
        if self._ahead is not None:
            self._ahead.release()

    async def _get_with_retries(self, data_ids: DataIds) -> TokenBatch:
        backoff = self._retry.begin()
        while True:
            try:
                return await self._get_once(data_ids)
            except SourceUnavailable as error:
                await backoff.wait(error)
                log.info("fetch_retried", extra={"data_ids": str(data_ids), "reason": str(error)})

    async def _get_once(self, data_ids: DataIds) -> TokenBatch:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                batch = await self._get_samples(data_ids)
        except TimeoutError as error:
            timeout_s = self._settings.timeout_s
            raise SourceUnavailable(f"no answer for data indices {data_ids} within {timeout_s:g} s") from error
        if batch.sample_count != data_ids.count:
            raise CorruptData(f"got {batch.sample_count} samples for the {data_ids.count} data indices {data_ids}")
        if self._vocabulary is not None and not batch.is_text:
            check_vocabulary(batch, data_ids.start, self._vocabulary)
        return batch

    async def _get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples, those that are held ahead and the others from the provider."""
        ahead = self._ahead
        if ahead is None:
            return await self._provider.get_samples(data_ids)
        missing = await ahead.missing_of(data_ids)
        if missing == (data_ids,):
            return await self._provider.get_samples(data_ids)
        fetched = [(part, await self._provider.get_samples(part)) for part in missing]
        if any(batch.sample_count != part.count for part, batch in fetched):
            raise CorruptData(f"got another number of samples than that of the data indices among {data_ids}")
        return joined([*ahead.take(data_ids), *fetched])

    async def _narrow(self, blamed: BatchId, error: DataError) -> BatchId:
        """Return the first of these batches that fails by itself, or the smallest interval known to contain it."""
        if isinstance(error, SourceUnavailable):
            return blamed
        while blamed.start != blamed.end:
            first, second = blamed.bisect()
            try:
                await self._get_once(first.to_data_ids(self._settings.data_indices_per_batch))
            except SourceUnavailable:
                return blamed
            except DataError:
                blamed = first
            else:
                blamed = second
        return blamed
