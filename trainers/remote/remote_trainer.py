"""The `remote` trainer: sends a round's examples to a training service, so that a client needs no device of its own.

Theory of operation. A round begins by sending its parameters. The examples of each local step are cut into chunks
within the service's limits and submitted in order, some at a time; the service adds up their gradients. When all are
answered, the service takes the optimizer step. At the end the parameters are fetched. When a chunk finally fails, the
local step fails, and with it the round's training: the service discards it on request, and the next round starts over.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from epochal.batching.chunking.column_chunks import ColumnChunk, chunk_columns
from epochal.batching.chunking.policies import ChunkLimits
from epochal.batching.micro_batches import MicroBatch, micro_batches
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError, InvalidInput, Refused, TrainerFailed
from epochal.state.model.computed_class import UNKNOWN_CLASS
from epochal.state.model.tensors import Float32Array, InvalidTensorFile, Tensors, encode_tensor_file, parse_tensor_file
from epochal.state.refusals import Refusal
from epochal.trainers.learner import Loss, Model
from epochal.trainers.protocol import TrainedRound
from epochal.trainers.remote.service_client import TrainingServiceClient
from epochal.trainers.remote.service_messages import (
    ChunkAnswer,
    OptimStepRequest,
    SessionOpened,
    SessionRequest,
    batch_of,
    encode_examples,
)

log = logging.getLogger(__name__)

MAX_REQUESTS_IN_FLIGHT = 8
"""Maximum number of requests of examples in flight."""
LOSS_INPUTS = 1
"""Number of an example's arrays in addition to its tokens: the labels."""
GONE = frozenset({Refusal.UNKNOWN_SESSION, Refusal.STALE_STEP, Refusal.INCOMPLETE_STEP})
"""Refusals after which the client leaves its session: it is gone, or in another state than the client believes."""


@dataclass(slots=True)
class ChunkMetrics:
    """Counts since the trainer was opened: local steps, the chunks and examples sent for them, and their bytes."""

    local_steps: int = 0
    chunks: int = 0
    items: int = 0
    wire_bytes: int = 0


class RemoteTrainer:
    """Trains a model on a training service.

    Args:
        service: the service; closed by `aclose`.
        model: the model that the request names.
        request: model, optimizer and whether the optimizer's state is kept, from the state file.
        worker: encodes the examples; closed by `aclose`.
    """

    name = "remote"
    loads_data = False

    def __init__(self, service: TrainingServiceClient, model: Model, request: SessionRequest, worker: Worker) -> None:
        self.vocabulary = model.vocabulary
        self._model = model
        self.metrics = ChunkMetrics()
        self._service = service
        self._request = request
        self._worker = worker
        self._session: SessionOpened | None = None
        self._keep_last = False
        self._trained = False
        self._is_anew = False
        """Whether the next round takes another session, which has no inner state."""

    @property
    def computed(self) -> str:
        return UNKNOWN_CLASS if self._session is None else self._session.computed

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

    def forget_inner_state(self) -> None:
        self._trained = self._keep_last = False
        self._is_anew = True

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
        nats, token_count, steps, norms = 0.0, 0, 0, list[float]()
        async for micro_batch in micro_batches(plan, batches):
            if not any(example.predicted for example in micro_batch.examples):
                continue
            answers, norm = await self._local_step(plan, session, round_key, steps, micro_batch)
            norms += [] if norm is None else [norm]
            nats += sum(answer.nats for answer in answers)
            token_count += sum(answer.tokens for answer in answers)
            steps += 1
        data = await self._service.parameters(session.session_id, round_key, steps)
        end = await self._worker.run(partial(self._parameters_in, data))
        log.info("chunks_sent", extra={"step": plan.step, **asdict(self.metrics)})
        return TrainedRound.between(plan.step, parameters, end, Loss(nats, token_count), norms)

    async def _begin(self, parameters: bytes) -> tuple[SessionOpened, str]:
        """Begin a round at these parameters, in the open session or, if it has ended, in a new one."""
        round_key = secrets.token_hex(8)
        if self._is_anew and self._session is not None:
            session, self._session = self._session, None
            await self._service.close(session.session_id)
        self._is_anew = False
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
    ) -> tuple[list[ChunkAnswer], float | None]:
        """Submit the examples in chunks, have the optimizer step taken, and return the answers to both."""
        limits = ChunkLimits(session.limits.items, session.limits.size)
        examples = [example for example in micro_batch.examples if example.tokens.size]
        chunks = chunk_columns([batch_of(examples)], LOSS_INPUTS, limits=limits)
        answers = await self._submit(session.session_id, (round_key, number), chunks)
        items = sum(answer.items for answer in answers)
        rate = plan.learning_rates[micro_batch.local_step]
        step = OptimStepRequest(round_key, number, items, rate)
        taken = await self._service.optim_step(session.session_id, step)
        self.metrics.local_steps += 1
        return answers, taken.gradient_norm

    async def _submit(
        self, session_id: str, place: tuple[str, int], chunks: Iterable[ColumnChunk]
    ) -> list[ChunkAnswer]:
        """Send the chunks of a local step and return the answers in order; if one fails, the others are cancelled."""
        free = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)

        async def send(chunk: ColumnChunk, body: bytes) -> ChunkAnswer:
            try:
                answer = await self._service.forward_backward(session_id, *place, body)
            finally:
                free.release()
            if answer.items != chunk.items:
                raise TrainerFailed(f"the training service counts {answer.items} examples in a chunk of {chunk.items}")
            return answer

        tasks: list[asyncio.Task[ChunkAnswer]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for chunk in chunks:
                    await free.acquire()
                    body = await self._worker.run(partial(encode_examples, chunk.parts))
                    self.metrics.chunks += 1
                    self.metrics.items += chunk.items
                    self.metrics.wire_bytes += len(body)
                    tasks.append(group.create_task(send(chunk, body)))
        except BaseExceptionGroup as failed:
            raise first_error(failed, EpochalError) from None
        return [task.result() for task in tasks]

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
