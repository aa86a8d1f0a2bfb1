"""A training service over a real socket, what a test does to its requests, and rounds to train on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batching.round_plan import RoundPlan
from data_providers.protocol import IGNORED_LABEL, TokenBatch
from runtime.clock import SystemClock
from runtime.http_server import Endpoint
from runtime.retry import RetryPolicy
from runtime.worker_thread import InlineWorker, WorkerThread
from state.config.model import AdamW, Architecture, ModelSpec, NgramConfig
from state.intervals import BatchId
from state.tensors import Tensors
from trainers.architectures import open_model
from trainers.learner_trainer import LearnerTrainer
from trainers.protocol import TrainedRound
from trainers.remote.client import TrainingServiceClient
from trainers.remote.trainer import RemoteTrainer
from trainers.remote.wire import (
    ServiceLimits,
    SessionRequest,
)
from training_service.app import create_app
from training_service.service import TrainingServiceOptions

SPEC = ModelSpec(architecture=Architecture.EPOCHAL_NGRAM, ngram=NgramConfig(context=3, embedding=4, hidden=6))
MODEL = open_model(SPEC)
ADAMW = AdamW(betas=(0.9, 0.95), weight_decay=0.01, eps=1e-8, clip_grad_norm=1.0)
BOUND_S = 20.0
FEW = ServiceLimits(items=4, size=10_000, wire_bytes=100_000)


@dataclass
class Faults:
    """An ASGI layer that does to each request of examples what a test says, once for each entry."""

    app: ASGIApp
    plan: list[Callable[["Faults", Scope, Receive, Send], Any] | None] = field(default_factory=list)
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


def answering(status: int, **headers: str) -> Any:
    """Answers so instead of the service."""

    async def fault(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": b"out of order"})

    return fault


async def losing_the_answer(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
    """The service acts; its answer never arrives."""

    async def nowhere(message: Message) -> None:
        pass

    await faults.app(scope, receive, nowhere)
    raise ConnectionAbortedError


def acting_and_answering(body: bytes, *headers: tuple[bytes, bytes]) -> Any:
    """The service acts; it answers so instead."""

    async def fault(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        async def nowhere(message: Message) -> None:
            pass

        await faults.app(scope, receive, nowhere)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return fault


@contextlib.asynccontextmanager
async def service(**options: Any) -> AsyncIterator[tuple[str, Faults]]:
    """A training service over a real socket; its URL, and what is done to its requests."""
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


def client_of(url: str, token: str | None = None, bound_s: float = BOUND_S) -> TrainingServiceClient:
    return TrainingServiceClient(url, RetryPolicy(SystemClock(), lambda: 0.0, bound_s), token)


def remote(url: str, inner_state: Any = "reset", **options: Any) -> RemoteTrainer:
    return RemoteTrainer(client_of(url), MODEL, SessionRequest(SPEC, ADAMW, inner_state), InlineWorker(), **options)


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
    """Documents of several lengths, every third one with labels."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        tokens = generator.integers(0, 256, int(generator.integers(1, 30))).astype("<u2")
        labels = tokens.astype(np.int64)
        if number % 3 == 0:
            labels[:: number % 2 + 2] = IGNORED_LABEL
        found.append((tokens, labels))
    return found


def rows_of(held: Sequence[tuple[Any, Any]]) -> Any:
    from batching.chunking.columns import Rows

    return [Rows(TokenBatch(tokens, np.array([0, len(tokens)]), labels), 0, 1) for tokens, labels in held]


async def arriving(held: Sequence[tuple[Any, Any]]) -> AsyncIterator[TokenBatch]:
    for tokens, labels in held:
        yield TokenBatch(tokens, np.array([0, len(tokens)]), labels)


def plan_of(count: int, local_steps: int = 3, step: int = 1) -> RoundPlan:
    return RoundPlan(step, (BatchId(0, count - 1),), 1, (0.01,) * local_steps)


def assert_close(found: TrainedRound, expected: TrainedRound) -> None:
    assert found.token_count == expected.token_count
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for name, values in expected.difference.items():
        np.testing.assert_allclose(found.difference[name], values, rtol=2e-3, atol=2e-5, err_msg=name)


def same_bytes(one: Tensors, other: Tensors) -> bool:
    return {n: v.tobytes() for n, v in one.items()} == {n: v.tobytes() for n, v in other.items()}
