"""The `remote` trainer: sends a round's examples to a training service, so that a client needs no device of its own.

Theory of operation. A round begins by sending its parameters. The examples of each local step are cut into chunks
within the service's limits and submitted in order, with a bound on the bytes in flight; the service adds up their
gradients. When all are answered, their metrics are combined and the service takes the optimizer step. At the end the
parameters are fetched. A chunk that the service finds too large (413) is cut in two. When a chunk finally fails, the
local step fails, and with it the round's training: the service is told to discard it, and the next round starts over.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from epochal.batching.chunking.column_chunks import ColumnChunk, Rows, chunk_columns
from epochal.batching.chunking.policies import BYTES, ChunkLimits, ChunkPolicy
from epochal.batching.micro_batches import MicroBatch, micro_batches
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError, InvalidInput, Refused, TrainerFailed
from epochal.state.model.tensors import Float32Array, InvalidTensorFile, Tensors, encode_tensor_file, parse_tensor_file
from epochal.state.refusals import Refusal
from epochal.trainers.learner import NOT_FINITE, Loss, Model
from epochal.trainers.protocol import TrainedRound
from epochal.trainers.remote.service_client import TrainingServiceClient
from epochal.trainers.remote.service_messages import (
    ChunkAnswer,
    OptimStepRequest,
    ServiceLimits,
    SessionOpened,
    SessionRequest,
    batch_of,
    combined,
    encode_examples,
)

log = logging.getLogger(__name__)

MAX_BYTES_IN_FLIGHT = 4
"""Bound on the bytes in flight, as a multiple of the service's size limit."""
MAX_REQUESTS_IN_FLIGHT = 32
"""Maximum number of requests in flight, however small."""
LOSS_INPUTS = 1
"""Number of an example's arrays in addition to its tokens: the labels."""
GONE = frozenset({Refusal.UNKNOWN_SESSION, Refusal.STALE_STEP, Refusal.INCOMPLETE_STEP})
"""Refusals after which the client leaves its session: it is gone, or in another state than the client believes."""


@dataclass(slots=True)
class ChunkMetrics:
    """Counts since the trainer was opened.

    Attributes:
        batches: local steps.
        chunks, items: chunks, and the examples in them.
        requests: requests of every kind, repetitions included.
        estimated_bytes, wire_bytes: estimated and encoded size of the chunks.
        splits: chunks that the service found too large.
    """

    batches: int = 0
    chunks: int = 0
    items: int = 0
    requests: int = 0
    estimated_bytes: int = 0
    wire_bytes: int = 0
    splits: int = 0


class RemoteTrainer:
    """Trains a model on a training service.

    Args:
        service: the service; closed by `aclose`.
        model: the model that the request names.
        request: model, optimizer and whether the optimizer's state is kept, from the state file.
        worker: encodes the examples; closed by `aclose`.
        policy: how chunks are measured.
    """

    name = "remote"
    loads_data = False

    def __init__(
        self,
        service: TrainingServiceClient,
        model: Model,
        request: SessionRequest,
        worker: Worker,
        policy: ChunkPolicy = BYTES,
    ) -> None:
        self.vocabulary = model.vocabulary
        self._model = model
        self.metrics = ChunkMetrics()
        self._service = service
        self._request = request
        self._worker = worker
        self._policy = policy
        self._session: SessionOpened | None = None
        self._keep_last = False
        self._trained = False

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return await self._worker.run(partial(self._model.initial_parameters, seed))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        self._trained = False
        try:
            trained = await self._train(plan, parameters, batches)
        except EpochalError as error:
            unwanted = isinstance(error, Refused) and (self._session is None or error.kind == Refusal.UNAUTHORIZED)
            await self._give_up(error)
            if unwanted:  # the user's fault, whatever the data: reporting the step would blame the data
                raise InvalidInput(f"training service: {error.message}") from error
            if isinstance(error, Refused | InvalidInput):  # the service's fault
                message = f"step {plan.step}: training service: {error.message}"
                raise TrainerFailed(message, **{**error.context, "step": plan.step}) from error
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(None))
            raise
        self._trained = True
        return trained

    def commit_inner_state(self) -> None:
        if self._trained:
            self._keep_last, self._trained = True, False

    def roll_back_inner_state(self) -> None:
        self._trained = False

    async def aclose(self) -> None:
        if self._session is not None:
            await self._service.close(self._session.session_id)
        await self._service.aclose()
        await self._worker.aclose()

    async def _train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        started = await self._worker.run(partial(encode_tensor_file, dict(parameters), {}))
        session, round_key = await self._begin(started)
        nats, token_count, steps = 0.0, 0, 0
        async for micro_batch in micro_batches(plan, batches):
            if not any(example.predicted for example in micro_batch.examples):
                continue
            metrics = await self._local_step(plan, session, round_key, steps, micro_batch)
            nats += metrics["loss:sum"]
            token_count += int(metrics["tokens:sum"])
            steps += 1
        data = await self._service.parameters(session.session_id, round_key, steps)
        end = await self._worker.run(partial(self._parameters_in, data))
        self.metrics.requests = self._service.requests
        log.info("chunks_sent", extra={"step": plan.step, **_shown(self.metrics)})
        return TrainedRound.between(plan.step, parameters, end, Loss(nats, token_count))

    async def _begin(self, parameters: bytes) -> tuple[SessionOpened, str]:
        """Begin a round at these parameters, in the open session or, if it has ended, in a new one."""
        round_key = secrets.token_hex(8)
        for is_last in (False, True):
            if self._session is None:
                self._session = await self._service.open(self._request)
            try:
                await self._service.begin_round(
                    self._session.session_id, round_key, parameters, keep_last=self._keep_last
                )
                break
            except Refused as refused:
                if refused.kind != Refusal.UNKNOWN_SESSION or is_last:
                    raise
                if self._request.inner_state == "keep":
                    log.warning("inner_state_lost", extra={"reason": refused.message})
                self._session = None
        assert self._session is not None
        self._keep_last = False
        return self._session, round_key

    async def _local_step(
        self, plan: RoundPlan, session: SessionOpened, round_key: str, number: int, micro_batch: MicroBatch
    ) -> dict[str, float]:
        """Submit the examples in chunks, have the optimizer step taken, and return the combined metrics."""
        submitter = _Submitter(self._service, session, (round_key, number), self._worker, self.metrics)
        limits = limits_of(self._policy, session.limits)
        examples = [example for example in micro_batch.examples if example.tokens.size]
        answers = await submitter.submit(chunk_columns([batch_of(examples)], LOSS_INPUTS, self._policy, limits))
        metrics = combined(answers)
        if not {"loss:sum", "tokens:sum"} <= metrics.keys():
            raise TrainerFailed(f"step {plan.step}: the training service answered with metrics {metrics}")
        if not math.isfinite(metrics["loss:sum"]):
            raise TrainerFailed(
                f"step {plan.step}: the loss of the training service is {metrics['loss:sum']}", failure=NOT_FINITE
            )
        items = sum(answer.items for answer in answers)
        rate = plan.learning_rates[micro_batch.local_step]
        await self._service.optim_step(session.session_id, OptimStepRequest(round_key, number, items, rate))
        self.metrics.batches += 1
        return metrics

    def _parameters_in(self, data: bytes) -> Tensors:
        try:
            tensors = parse_tensor_file(data).tensors()
        except InvalidTensorFile as error:
            raise TrainerFailed(f"the training service sent no parameters: {error.message}") from error
        if {name: values.shape for name, values in tensors.items()} != self._model.shapes:
            raise TrainerFailed("the training service sent the parameters of another model")
        return tensors

    async def _give_up(self, error: EpochalError | None) -> None:
        """Have the service discard the round; leave a session that is gone or in another state.

        A round that did not begin left nothing to discard, and the service still holds the last one's state.
        """
        session = self._session
        if session is None:
            return
        if isinstance(error, Refused) and error.kind in GONE:
            self._session = None
        if self._keep_last:
            return
        await self._service.discard(session.session_id)


def limits_of(policy: ChunkPolicy, served: ServiceLimits) -> ChunkLimits:
    """Return the service's limits as a policy measures them, or the policy's own where they are stricter."""
    if policy is BYTES:
        return ChunkLimits(served.items, served.size)
    size = max(1, served.size * policy.number_size // BYTES.number_size)
    return ChunkLimits(min(served.items, policy.limits.items), min(size, policy.limits.size))


class _Submitter:
    """Submits the chunks of one local step."""

    def __init__(
        self,
        service: TrainingServiceClient,
        session: SessionOpened,
        place: tuple[str, int],
        worker: Worker,
        metrics: ChunkMetrics,
    ) -> None:
        self._service = service
        self._session = session
        self._place = place
        self._worker = worker
        self._metrics = metrics
        self._most = MAX_BYTES_IN_FLIGHT * session.limits.wire_bytes
        self._in_flight = 0
        self._requests = 0
        self._landed = asyncio.Condition()

    async def submit(self, chunks: Iterable[ColumnChunk]) -> list[ChunkAnswer]:
        """Send the chunks and return the answers in their order.

        Raises:
            Refused, TrainerFailed: a chunk failed; the others are cancelled.
        """
        tasks: list[asyncio.Task[list[ChunkAnswer]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for chunk in chunks:
                    body = await self._worker.run(partial(encode_examples, chunk.parts))
                    await self._wait_for_room(len(body))
                    self._metrics.chunks += 1
                    self._metrics.items += chunk.items
                    self._metrics.estimated_bytes += chunk.size
                    self._metrics.wire_bytes += len(body)
                    tasks.append(group.create_task(self._send(chunk.parts, body)))
        except BaseExceptionGroup as failed:
            raise first_error(failed, EpochalError) from None
        return [answer for task in tasks for answer in task.result()]

    async def _wait_for_room(self, size: int) -> None:
        async with self._landed:
            while self._requests and (self._in_flight + size > self._most or self._requests == MAX_REQUESTS_IN_FLIGHT):
                await self._landed.wait()
            self._in_flight += size
            self._requests += 1

    async def _send(self, parts: Sequence[Rows], body: bytes) -> list[ChunkAnswer]:
        try:
            return await self._send_or_split(parts, body)
        finally:
            async with self._landed:
                self._in_flight -= len(body)
                self._requests -= 1
                self._landed.notify_all()

    async def _send_or_split(self, parts: Sequence[Rows], body: bytes) -> list[ChunkAnswer]:
        """Return the answer to a chunk, or, if the service finds it too large, the answers to its halves."""
        items = sum(part.stop - part.start for part in parts)
        try:
            answer = await self._service.forward_backward(self._session.session_id, *self._place, body)
        except Refused as refused:
            if refused.kind != Refusal.BODY_TOO_LARGE or items == 1:
                raise
            self._metrics.splits += 1
            log.info("chunk_split", extra={"items": items, "bytes": len(body)})
            found: list[ChunkAnswer] = []
            for half in _halves(parts, items):
                found += await self._send_or_split(half, await self._worker.run(partial(encode_examples, half)))
            return found
        if answer.items != items:
            raise TrainerFailed(f"the training service counts {answer.items} examples in a chunk of {items}")
        return [answer]


def _halves(parts: Sequence[Rows], items: int) -> tuple[list[Rows], list[Rows]]:
    """Return the first half of a chunk's examples, and the second."""
    first: list[Rows] = []
    second: list[Rows] = []
    left = items // 2
    for batch, start, stop in parts:
        cut = min(stop, start + left)
        left -= cut - start
        first += [Rows(batch, start, cut)] if cut > start else []
        second += [Rows(batch, cut, stop)] if stop > cut else []
    return first, second


def _shown(metrics: ChunkMetrics) -> dict[str, float]:
    """Return totals and averages for a log line."""
    chunks, batches = metrics.chunks or 1, metrics.batches or 1
    return {
        "chunks_per_batch": metrics.chunks / batches,
        "items_per_chunk": metrics.items / chunks,
        "bytes_per_chunk": metrics.wire_bytes / chunks,
        "requests_per_call": metrics.requests / batches,
        "estimate_over_wire": metrics.estimated_bytes / (metrics.wire_bytes or 1),
        "splits": metrics.splits,
    }
