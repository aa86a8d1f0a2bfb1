"""The remote trainer and the training service over real HTTP: the same numbers as at home, whatever happens."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batching.chunking.policies import BYTES, NUMBERS, ChunkLimits, ChunkPolicy
from batching.micro_batches import Example
from batching.round_plan import RoundPlan
from data_providers.protocol import IGNORED_LABEL, TokenBatch
from runtime.clock import SystemClock
from runtime.http_server import Endpoint
from runtime.retry import RetryPolicy
from runtime.worker_thread import InlineWorker, WorkerThread
from state.config.model import AdamW, Architecture, ModelSpec, NgramConfig
from state.errors import InvalidDocument, InvalidInput, Refused, TrainerFailed
from state.intervals import BatchId
from state.refusals import Refusal
from state.tensors import Tensors, encode_tensor_file
from trainers.architectures import open_model
from trainers.learner_trainer import LearnerTrainer
from trainers.protocol import TrainedRound
from trainers.remote import trainer as remote_trainer
from trainers.remote.client import TrainingServiceClient
from trainers.remote.trainer import RemoteTrainer, limits_of
from trainers.remote.wire import (
    ChunkAnswer,
    OptimStepRequest,
    ServiceLimits,
    SessionRequest,
    combined,
    decode_examples,
    encode_examples,
)
from training_service.app import create_app
from training_service.service import TrainingServiceOptions
from training_service.session_table import SessionBounds

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


def documents(count: int, seed: int = 0) -> list[tuple[Any, Any]]:
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


@pytest.mark.parametrize("limits", [ServiceLimits(), FEW, ServiceLimits(1, 1, 100_000)])
async def test_remote_round_is_the_local_one_however_it_is_cut(limits: ServiceLimits) -> None:
    start = await local().initial_parameters(bytes(32))
    data = documents(40)
    expected = await local().train(plan_of(40), start, arriving(data))
    async with service(limits=limits) as (url, faults):
        trainer = remote(url)
        assert same_bytes(await trainer.initial_parameters(bytes(32)), start)
        found = await trainer.train(plan_of(40), start, arriving(data))
        await trainer.aclose()
    assert_close(found, expected)
    chunks = {1024: 3, 4: 12, 1: 40}[limits.items]
    metrics = trainer.metrics
    assert (metrics.batches, metrics.items, metrics.chunks, metrics.splits) == (3, 40, chunks, 0)
    assert len(faults.keys) == chunks
    assert len(set(faults.keys)) == chunks
    tokens = sum(len(tokens) for tokens, _ in data)
    assert metrics.estimated_bytes == 10 * 2 * tokens
    assert metrics.requests == 1 + 1 + chunks + 3 + 1
    assert metrics.wire_bytes > 0


async def test_older_policy_cuts_by_numbers() -> None:
    start = await local().initial_parameters(bytes(32))
    data = documents(300)
    async with service() as (url, _):  # the service takes 1,024 items, the policy 128
        trainer = remote(url, policy=NUMBERS)
        await trainer.train(plan_of(300, 1), start, arriving(data))
        await trainer.aclose()
    assert trainer.metrics.chunks == 3
    assert trainer.metrics.estimated_bytes == 2 * sum(len(tokens) for tokens, _ in data)


@pytest.mark.parametrize(
    ("policy", "served", "limits"),
    [
        (BYTES, ServiceLimits(2048, 9_000_000), ChunkLimits(2048, 9_000_000)),
        (BYTES, ServiceLimits(4, 100), ChunkLimits(4, 100)),
        (NUMBERS, ServiceLimits(1024, 5_000_000), ChunkLimits(128, 500_000)),
        (NUMBERS, ServiceLimits(4, 100), ChunkLimits(4, 10)),
        (NUMBERS, ServiceLimits(4, 3), ChunkLimits(4, 1)),
    ],
)
def test_limits_are_the_services_as_the_policy_measures_them(
    policy: ChunkPolicy, served: ServiceLimits, limits: ChunkLimits
) -> None:
    assert limits_of(policy, served) == limits


async def test_inner_state_is_kept_only_of_rounds_that_count() -> None:
    here = local("keep")
    start = await here.initial_parameters(bytes(32))
    async with service() as (url, _):
        there = remote(url, "keep")
        for number, counts in enumerate([True, False, True, True]):
            data = documents(9, number)
            for trainer in (here, there):
                trainer.roll_back_inner_state()  # as a step does before it trains; what was committed stays
            expected = await here.train(plan_of(9), start, arriving(data))
            found = await there.train(plan_of(9), start, arriving(data))
            assert_close(found, expected)
            for trainer in (here, there):
                if counts:
                    trainer.commit_inner_state()
                else:
                    trainer.roll_back_inner_state()
        await there.aclose()


async def test_inner_state_outlives_a_round_that_could_not_begin() -> None:
    here, bad = local("keep"), {"w": np.zeros(1, np.float32)}
    start = await here.initial_parameters(bytes(32))
    async with service() as (url, _):
        there = remote(url, "keep")
        for number in range(2):
            data = documents(9, number)
            expected = await here.train(plan_of(9), start, arriving(data))
            assert_close(await there.train(plan_of(9), start, arriving(data)), expected)
            here.commit_inner_state()
            there.commit_inner_state()
            with pytest.raises(TrainerFailed, match="tensors"):
                await there.train(plan_of(9), bad, arriving(data))
        await there.aclose()


async def test_repeated_requests_keep_their_key_and_are_counted_once() -> None:
    start = await local().initial_parameters(bytes(32))
    data = documents(12)
    async with service(limits=FEW) as (url, faults):
        trainer = remote(url)
        expected = await trainer.train(plan_of(12, 3), start, arriving(data))
        faults.keys.clear()
        faults.plan = [losing_the_answer, None, answering(503, Retry_After="0"), answering(429), losing_the_answer]
        found = await trainer.train(plan_of(12, 3), start, arriving(data))
        await trainer.aclose()
    assert same_bytes(found.difference, expected.difference)
    assert found.loss == expected.loss
    assert len(faults.keys) == 3 + 4
    assert len(set(faults.keys)) == 3


async def test_service_that_says_when_to_come_again_is_asked_no_sooner() -> None:
    start = await local().initial_parameters(bytes(32))
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [answering(503, Retry_After="1")]
        await trainer.train(plan_of(3, 1), start, arriving(documents(3)))
        await trainer.aclose()
    first_s, second_s = faults.started_s
    assert second_s - first_s >= 1


async def test_chunk_that_is_too_large_for_the_wire_is_split_and_counted_once() -> None:
    start = await local().initial_parameters(bytes(32))
    data = documents(20)
    expected = await local().train(plan_of(20, 1), start, arriving(data))
    async with service(limits=ServiceLimits(items=20, size=10**6, wire_bytes=600)) as (url, _):
        trainer = remote(url)
        found = await trainer.train(plan_of(20, 1), start, arriving(data))
        await trainer.aclose()
    assert_close(found, expected)
    assert trainer.metrics.splits > 1


async def test_example_that_is_too_large_alone_fails_the_step_and_the_client_stays_usable() -> None:
    start = await local().initial_parameters(bytes(32))
    large = [(np.zeros(500, "<u2"), np.zeros(500, np.int64))]
    data = documents(6)
    async with service(limits=ServiceLimits(items=9, size=10**6, wire_bytes=700)) as (url, _):
        trainer = remote(url)
        with pytest.raises(TrainerFailed, match="413 a body of more than 700 bytes"):
            await trainer.train(plan_of(7, 2), start, arriving(data + large))
        found = await trainer.train(plan_of(6), start, arriving(data))
        await trainer.aclose()
    assert_close(found, await local().train(plan_of(6), start, arriving(data)))


@pytest.mark.parametrize("status", [400, 422, 404])
async def test_chunk_that_fails_for_good_fails_the_step_and_its_gradient_is_discarded(status: int) -> None:
    start = await local().initial_parameters(bytes(32))
    data = documents(16)
    async with service(limits=FEW) as (url, faults):
        trainer = remote(url)
        faults.plan = [None, None, answering(status)]
        with pytest.raises(TrainerFailed, match=f"step 5: training service: .*: {status} out of order"):
            await trainer.train(plan_of(16, 1, step=5), start, arriving(data))
        found = await trainer.train(plan_of(16, 1), start, arriving(data))
        await trainer.aclose()
    assert_close(found, await local().train(plan_of(16, 1), start, arriving(data)))


async def test_examples_that_the_model_cannot_learn_are_said() -> None:
    start = await local().initial_parameters(bytes(32))
    wrong = [(np.array([7, 256], "<u2"), np.array([7, 8]))]
    async with service() as (url, _):
        trainer = remote(url)
        with pytest.raises(TrainerFailed, match="token 256; the model knows bytes only"):
            await trainer.train(plan_of(1, 1), start, arriving(wrong))
        await trainer.aclose()


async def test_service_that_never_answers_fails_the_step_in_bounded_time() -> None:
    start = await local().initial_parameters(bytes(32))
    request = SessionRequest(SPEC, ADAMW)
    nobody = RemoteTrainer(client_of("http://127.0.0.1:9", bound_s=0.2), MODEL, request, InlineWorker())
    with pytest.raises(TrainerFailed, match="does not answer"):
        await nobody.train(plan_of(2, 1), start, arriving(documents(2)))
    await nobody.aclose()
    async with service(limits=FEW) as (url, faults):
        patient = RemoteTrainer(client_of(url, bound_s=0.2), MODEL, request, InlineWorker())
        faults.plan = [answering(503, Retry_After="30")]
        with pytest.raises(TrainerFailed, match="503"):
            await patient.train(plan_of(2, 1), start, arriving(documents(2)))
        await patient.aclose()


async def test_answer_that_took_longer_than_the_patience_is_asked_for_again() -> None:
    start = await local().initial_parameters(bytes(32))
    clock = HandClock()

    async def gateway_gives_up(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        clock.now_s += 2 * BOUND_S
        await answering(504)(faults, scope, receive, send)

    async with service() as (url, faults):
        client = TrainingServiceClient(url, RetryPolicy(clock, lambda: 0.0, BOUND_S))
        trainer = RemoteTrainer(client, MODEL, SessionRequest(SPEC, ADAMW), InlineWorker())
        faults.plan = [gateway_gives_up]
        assert (await trainer.train(plan_of(3, 1), start, arriving(documents(3)))).token_count
        await trainer.aclose()


async def test_service_that_started_anew_gets_a_new_session() -> None:
    start = await local().initial_parameters(bytes(32))
    data = documents(5)
    clock = HandClock()
    async with service(sessions=SessionBounds(1, 10.0)) as (url, faults):
        trainer = remote(url)
        first = await trainer.train(plan_of(5), start, arriving(data))
        app: Any = faults.app
        faults.app = create_app(
            TrainingServiceOptions(), InlineWorker(), clock
        )  # the same address, and no session of before
        second = await trainer.train(plan_of(5), start, arriving(data))
        faults.app = app
        assert same_bytes(first.difference, second.difference)
        await trainer.aclose()


@dataclass
class HandClock:
    """Time that a test sets."""

    now_s: float = 0.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


async def test_idle_sessions_make_room_and_others_are_told_to_wait() -> None:
    clock = HandClock()
    app = create_app(TrainingServiceOptions(sessions=SessionBounds(2, 60.0)), InlineWorker(), clock)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        body = {"model": SPEC.model_dump(), "optimizer": None}
        for _ in range(2):
            assert (await http.post("/v1/sessions", json=body)).status_code == 201
        full = await http.post("/v1/sessions", json=body)
        assert (full.status_code, full.headers["Retry-After"]) == (503, "1")
        clock.now_s = 61.0
        opened = await http.post("/v1/sessions", json=body)
        assert opened.status_code == 201
        session_id = opened.json()["session_id"]
        assert (await http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        assert (await http.post(f"/v1/sessions/{session_id}/discard")).status_code == 404


async def test_token_is_asked_of_every_request() -> None:
    async with service(token="secret") as (url, _):
        for shown in (None, "guess"):
            client = client_of(url, shown)
            with pytest.raises(Refused, match="asks for its token") as refused:
                await client.open(SessionRequest(SPEC, None))
            assert refused.value.kind == Refusal.UNAUTHORIZED
            await client.aclose()
        client = client_of(url, "secret")
        opened = await client.open(SessionRequest(SPEC, None))
        assert len(opened.session_id) == 32
        await client.aclose()


async def test_service_that_does_not_want_the_client_is_the_user_s_mistake_and_fails_no_step() -> None:
    start = await local().initial_parameters(bytes(32))
    async with service(token="secret") as (url, faults):
        trainer = remote(url)
        with pytest.raises(InvalidInput, match="401 this training service asks for its token"):
            await trainer.train(plan_of(3), start, arriving(documents(3)))
        await trainer.aclose()
        elsewhere = remote(f"{url}/elsewhere")
        with pytest.raises(InvalidInput, match="training service: POST /v1/sessions: 404"):
            await elsewhere.train(plan_of(3), start, arriving(documents(3)))
        await elsewhere.aclose()
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [answering(401)]
        with pytest.raises(InvalidInput, match="401 out of order"):
            await trainer.train(plan_of(3), start, arriving(documents(3)))
        await trainer.aclose()


async def test_service_refuses_what_does_not_belong_to_the_session_s_step() -> None:
    start = encode_tensor_file(await local().initial_parameters(bytes(32)), {})
    examples = encode_examples(_rows(documents(3)))
    async with service(limits=FEW) as (url, _):
        client = client_of(url)
        session_id = (await client.open(SessionRequest(SPEC, ADAMW))).session_id
        with pytest.raises(Refused, match="the session is at no round"):
            await client.forward_backward(session_id, "r", 0, examples)
        with pytest.raises(Refused, match="tensors"):
            await client.begin_round(
                session_id, "r", encode_tensor_file({"a": np.zeros(1, "<f4")}, {}), keep_last=False
            )
        with pytest.raises(Refused, match="422"):
            await client.begin_round(session_id, "r", b"x", keep_last=False)
        await client.begin_round(session_id, "r", start, keep_last=False)
        assert (await client.forward_backward(session_id, "r", 0, examples)).items == 3
        for place in (("r", 1), ("other", 0)):
            with pytest.raises(Refused, match="the session is at round r, local step 0"):
                await client.forward_backward(session_id, *place, examples)
        with pytest.raises(Refused, match="3 examples arrived of the 4 that the step is for"):
            await client.optim_step(session_id, OptimStepRequest("r", 0, 4, 0.1))
        await client.optim_step(session_id, OptimStepRequest("r", 0, 3, 0.1))
        with pytest.raises(Refused, match="round r, local step 1"):
            await client.parameters(session_id, "r", 0)
        with pytest.raises(Refused, match="5 examples; at most 4"):
            await client.forward_backward(session_id, "r", 1, encode_examples(_rows(documents(5))))
        await client.aclose()
        async with httpx.AsyncClient(base_url=url) as http:
            path = f"/v1/sessions/{session_id}/rounds/r/steps/1/forward_backward"
            bare = await http.post(path, content=examples)
            assert bare.status_code == 422
            assert "Idempotency-Key" in bare.json()["detail"]
            nameless = await http.post(path, content=examples, headers={"Idempotency-Key": ""})
            assert nameless.status_code == 422, "the next request without a key would get its answer"
            optim = f"/v1/sessions/{session_id}/optim_step"
            named = {"Idempotency-Key": "once"}
            assert (await http.post(path, content=examples, headers=named)).json()["items"] == 3
            step = json.dumps({"round_key": "r", "local_step": 1, "items": 3, "learning_rate": 0.1})
            assert "tokens:sum" in (await http.post(optim, content=step, headers=named)).json()["metrics"]
            done = await http.get(f"/v1/sessions/{session_id}/rounds/r/steps/2/parameters")
            assert done.status_code == 200, "a key names a request of its kind; another one's answer is none"
            for wrong in ({"learning_rate": float("nan")}, {"learning_rate": 0.1, "more": 1}):
                body = json.dumps({"round_key": "r", "local_step": 2, "items": 0, **wrong})
                refused = await http.post(optim, content=body, headers={"Idempotency-Key": "step"})
                assert refused.status_code == 422, wrong
            assert (await http.get("/nowhere")).json()["type"] == "urn:epochal:problem:not-found"
            assert "session" in (await http.get("/openapi.json")).text


def _rows(held: Sequence[tuple[Any, Any]]) -> Any:
    from batching.chunking.columns import Rows

    return [Rows(TokenBatch(tokens, np.array([0, len(tokens)]), labels), 0, 1) for tokens, labels in held]


def test_outputs_combine_by_the_number_of_examples_and_unknown_reductions_are_errors() -> None:
    answers = [
        ChunkAnswer(3, {"a:mean": 1.0, "b:sum": 1.0, "c:min": 5.0, "d:max": 5.0}),
        ChunkAnswer(1, {"a:mean": 5.0, "b:sum": 2.0, "c:min": 4.0, "d:max": 6.0}),
    ]
    assert combined(answers) == {"a:mean": 2.0, "b:sum": 3.0, "c:min": 4.0, "d:max": 6.0}
    assert combined([]) == {}
    for key in ("a:median", "loss", "a:"):
        with pytest.raises(TrainerFailed, match=r"allowed: NAME:mean, :sum, :min or :max"):
            combined([ChunkAnswer(1, {key: 1.0})])
    with pytest.raises(TrainerFailed, match="only some answers"):
        combined([answers[0], ChunkAnswer(1, {})])


async def test_service_whose_metrics_cannot_be_combined_fails_the_step() -> None:
    start = await local().initial_parameters(bytes(32))

    async def odd(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.dumps({"items": 3, "metrics": {"loss:median": 1.0}}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [odd]
        with pytest.raises(TrainerFailed, match="'loss:median'"):
            await trainer.train(plan_of(3, 1), start, arriving(documents(3)))
        await trainer.aclose()


def acting_and_answering(body: bytes, *headers: tuple[bytes, bytes]) -> Any:
    """The service acts; it answers so instead."""

    async def fault(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        async def nowhere(message: Message) -> None:
            pass

        await faults.app(scope, receive, nowhere)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return fault


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":3,"metrics":{"loss:sum":1.0,"tokens:sum":NaN}}',
        b'{"items":3,"metrics":{"loss:sum":1.0,"tokens:sum":1e999}}',
        b'{"items":3,"metrics":{"loss:sum":1.0,"tokens:sum":1},"more":1}',
    ],
)
async def test_answer_that_is_none_fails_the_step_and_the_client_stays_usable(body: bytes) -> None:
    start = await local().initial_parameters(bytes(32))
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [acting_and_answering(body)]
        with pytest.raises(TrainerFailed, match="not a valid ChunkAnswer"):
            await trainer.train(plan_of(3, 1), start, arriving(documents(3)))
        assert (await trainer.train(plan_of(3, 1), start, arriving(documents(3)))).token_count
        await trainer.aclose()


async def test_answer_that_cannot_be_decoded_is_asked_for_again_and_counted_once() -> None:
    start = await local().initial_parameters(bytes(32))
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [acting_and_answering(b"no gzip", (b"content-encoding", b"gzip"))]
        trained = await trainer.train(plan_of(3, 1), start, arriving(documents(3)))
        await trainer.aclose()
    assert_close(trained, await local().train(plan_of(3, 1), start, arriving(documents(3))))
    assert len(set(faults.keys)) == 1
    assert len(faults.keys) == 2


async def test_service_whose_limits_allow_nothing_fails_the_step() -> None:
    start = await local().initial_parameters(bytes(32))
    for limits in (ServiceLimits(items=0), ServiceLimits(size=0)):
        async with service(limits=limits) as (url, _):
            trainer = remote(url)
            with pytest.raises(TrainerFailed, match="a limit of 0"):
                await trainer.train(plan_of(3, 1), start, arriving(documents(3)))
            await trainer.aclose()


async def test_cancelled_round_is_discarded_and_the_next_one_begins_anew() -> None:
    start = await local().initial_parameters(bytes(32))
    reached = asyncio.Event()

    async def hanging(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with service(limits=FEW) as (url, faults):
        trainer = remote(url)
        faults.plan = [None, hanging]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(trainer.train(plan_of(8, 1), start, arriving(documents(8))))
            await reached.wait()
            task.cancel()
        found = await trainer.train(plan_of(8, 1), start, arriving(documents(8)))
        await trainer.aclose()
    assert_close(found, await local().train(plan_of(8, 1), start, arriving(documents(8))))


# The wire


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8))
def test_examples_survive_the_wire(shapes: list[tuple[int, bool]]) -> None:
    held = [(np.arange(n, dtype="<u2"), np.arange(n) if labelled else None) for n, labelled in shapes]
    back = decode_examples(encode_examples(_rows(held)))
    assert [document.tokens.tolist() for document in back] == [tokens.tolist() for tokens, _ in held]
    for document, (tokens, labels) in zip(back, held, strict=True):
        if any(labelled for _, labelled in shapes):
            assert document.labels is not None
            assert document.labels.tolist() == (tokens if labels is None else labels).tolist()
        else:
            assert document.labels is None


@pytest.mark.parametrize(
    "arrays",
    [
        {"tokens": np.zeros(2, "<u2")},
        {"tokens": np.zeros(2, "<i2"), "offsets": np.array([0, 2])},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0, 3])},
        {"tokens": np.zeros((1, 2), "<u2"), "offsets": np.array([0, 2])},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0, 2]), "labels": np.zeros(3, "<i4")},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0.0, 2.0])},
    ],
)
def test_bytes_that_are_no_examples_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument, match="no examples"):
        decode_examples(safetensors.numpy.save(arrays))
    for damaged in (b"", b"\xff" * 16, safetensors.numpy.save(arrays)[:-1]):
        with pytest.raises(InvalidDocument, match="no examples"):
            decode_examples(damaged)


async def test_requests_under_way_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_trainer, "MAX_REQUESTS_IN_FLIGHT", 3)
    under_way, most = 0, 0

    async def counting(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await faults.app(scope, receive, send)
        under_way -= 1

    start = await local().initial_parameters(bytes(32))
    async with service(limits=ServiceLimits(items=1)) as (url, faults):
        faults.plan = [counting] * 40
        trainer = remote(url)
        trained = await trainer.train(plan_of(40, 1), start, arriving(documents(40)))
        await trainer.aclose()
    assert trained.token_count
    assert len(faults.keys) == 40
    assert 1 <= most <= 3


async def test_examples_that_cannot_be_learnt_discard_the_local_step() -> None:
    start = encode_tensor_file(await local().initial_parameters(bytes(32)), {})
    bad = encode_examples(_rows([Example(np.array([1, 300], "<u2"))]))
    async with service() as (url, _):
        client = client_of(url)
        session_id = (await client.open(SessionRequest(SPEC, ADAMW))).session_id
        await client.begin_round(session_id, "r", start, keep_last=False)
        await client.forward_backward(session_id, "r", 0, encode_examples(_rows(documents(3))))
        with pytest.raises(Refused, match="token 300"):
            await client.forward_backward(session_id, "r", 0, bad)
        with pytest.raises(Refused, match="0 examples arrived of the 3"):
            await client.optim_step(session_id, OptimStepRequest("r", 0, 3, 0.1))
        await client.aclose()


async def test_model_that_no_message_could_carry_is_refused() -> None:
    async with service() as (url, _):
        client = client_of(url)
        huge = NgramConfig(context=1, embedding=65536, hidden=65536)
        with pytest.raises(Refused, match=r"a model of 17[0-9]+ bytes; at most 1073741824"):
            await client.open(SessionRequest(SPEC.model_copy(update={"ngram": huge}), ADAMW))
        await client.aclose()


def test_examples_are_counted_before_they_are_looked_at() -> None:
    arrays = {"tokens": np.zeros(0, "<u2"), "offsets": np.zeros(5, "<i8")}
    body = safetensors.numpy.save(arrays)
    assert len(decode_examples(body, 4)) == 4
    with pytest.raises(Refused, match="4 examples; at most 3 in one request") as refused:
        decode_examples(body, 3)
    assert refused.value.kind == "body-too-large"


@pytest.mark.parametrize("url", ["ftp://x", "nowhere", "http://", "http://[::1"])
def test_url_of_no_service_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match="training service URL"):
        client_of(url)
