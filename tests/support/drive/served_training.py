"""A training service over a real socket, faults that a test injects into its requests, and rounds to train on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.batching.chunking.column_chunks import Rows
from epochal.data_providers.protocol import IGNORED_LABEL, TokenBatch
from epochal.runtime.clock import SystemClock
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker, WorkerThread
from epochal.state.config.model_table import Architecture, ModelSpec, NgramConfig
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.protocol import TrainedRound, Trainer
from epochal.trainers.remote.remote_trainer import RemoteTrainer
from epochal.trainers.remote.service_client import TrainingServiceClient
from epochal.trainers.remote.service_messages import ServiceLimits, SessionRequest
from epochal.training_service.service import TrainingServiceOptions
from epochal.training_service.service_app import create_app
from tests.support.bounds import BOUND_S
from tests.support.models.local_training import ADAMW, plan_of

SPEC = ModelSpec(architecture=Architecture.EPOCHAL_NGRAM, ngram=NgramConfig(context=3, embedding=4, hidden=6))
MODEL = open_model(SPEC)
START = MODEL.initial_parameters(bytes(32))
FEW = ServiceLimits(items=4, size=10_000, wire_bytes=100_000)

Samples: TypeAlias = Sequence[tuple[Any, Any]]
"""Tokens and labels (or None) of each sample."""
Fault: TypeAlias = Callable[["Faults", Scope, Receive, Send], Awaitable[None]]


@dataclass
class Faults:
    """An ASGI layer that treats the requests of examples as the plan says, one entry for each."""

    app: ASGIApp
    plan: list[Fault | None] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The idempotency key of each request of examples, in the order of their arrival."""
    started_s: list[float] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/forward_backward"):
            self.keys.append(dict(scope["headers"]).get(b"idempotency-key", b"").decode())
            self.started_s.append(asyncio.get_running_loop().time())
            fault = self.plan.pop(0) if self.plan else None
            if fault is not None:
                await fault(self, scope, receive, send)
                return
        await self.app(scope, receive, send)


def answering(status: int, body: bytes = b"out of order", *, acts: bool = False, **headers: str) -> Fault:
    """Give this answer instead of the service's, which acts on the request first or never sees it."""

    async def fault(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        if acts:
            await faults.app(scope, receive, _nowhere)
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})

    return fault


async def losing_the_answer(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
    """The service acts; its answer never arrives."""
    await faults.app(scope, receive, _nowhere)
    raise ConnectionAbortedError


async def _nowhere(message: Message) -> None:
    pass


@contextlib.asynccontextmanager
async def service(**options: Any) -> AsyncIterator[tuple[str, Faults]]:
    """A training service over a real socket; its URL, and the faults of its requests."""
    worker = WorkerThread("test-service")
    faults = Faults(create_app(TrainingServiceOptions(**options), worker, SystemClock()))
    endpoint = Endpoint(port=0)
    server = endpoint.server(faults)
    with endpoint.bind() as listener:
        async with asyncio.TaskGroup() as group:
            http = group.create_task(server.serve([listener]))
            try:
                yield endpoint.url_of(listener), faults
            finally:
                server.should_exit = True
                await asyncio.wait([http], timeout=5)
                await worker.aclose()


@contextlib.asynccontextmanager
async def remote(inner_state: Any = "reset", **options: Any) -> AsyncIterator[tuple[RemoteTrainer, Faults]]:
    """A remote trainer, and the faults of its training service's requests."""
    async with service(**options) as (url, faults), remote_at(client_of(url), inner_state) as trainer:
        yield trainer, faults


@contextlib.asynccontextmanager
async def remote_at(client: TrainingServiceClient, inner_state: Any = "reset") -> AsyncIterator[RemoteTrainer]:
    """A remote trainer that uses this client."""
    trainer = RemoteTrainer(client, MODEL, SessionRequest(SPEC, ADAMW, inner_state), InlineWorker())
    try:
        yield trainer
    finally:
        await trainer.aclose()


def client_of(url: str, token: str | None = None, bound_s: float = BOUND_S) -> TrainingServiceClient:
    return TrainingServiceClient(url, RetryPolicy(SystemClock(), lambda: 0.0, bound_s), token)


def local(inner_state: Any = "reset") -> LearnerTrainer:
    return LearnerTrainer(MODEL, ADAMW, inner_state == "keep", InlineWorker())


@dataclass
class HandClock:
    """Time that a test sets."""

    now_s: float = 0.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


def samples(count: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """Samples of several lengths, every third one with ignored labels."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        tokens = generator.integers(0, 256, int(generator.integers(1, 30))).astype("<u2")
        labels = tokens.astype(np.int64)
        if number % 3 == 0:
            labels[:: number % 2 + 2] = IGNORED_LABEL
        found.append((tokens, labels))
    return found


def rows_of(held: Samples) -> list[Rows]:
    return [Rows(TokenBatch(tokens, np.array([0, len(tokens)]), labels), 0, 1) for tokens, labels in held]


async def train(
    trainer: Trainer, held: Samples, local_steps: int = 3, step: int = 1, start: Tensors = START
) -> TrainedRound:
    """Train a round on these samples."""

    async def arriving() -> AsyncIterator[TokenBatch]:
        for row in rows_of(held):
            yield row.batch

    return await trainer.train(plan_of(len(held), local_steps, step=step), start, arriving())


def assert_close(found: TrainedRound, expected: TrainedRound) -> None:
    assert found.token_count == expected.token_count
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-3)
    for name, values in expected.difference.items():
        np.testing.assert_allclose(found.difference[name], values, rtol=2e-3, atol=2e-5, err_msg=name)
