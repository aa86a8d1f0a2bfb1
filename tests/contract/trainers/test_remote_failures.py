"""A remote trainer whose training service fails, refuses, or says nonsense: a step fails, the client goes on."""

import json

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send

from runtime.retry import RetryPolicy
from runtime.worker_thread import InlineWorker
from state.errors import InvalidInput, TrainerFailed
from tests.support.served_training import (
    ADAMW,
    BOUND_S,
    FEW,
    MODEL,
    SPEC,
    Faults,
    HandClock,
    acting_and_answering,
    answering,
    arriving,
    assert_close,
    client_of,
    local,
    losing_the_answer,
    plan_of,
    remote,
    same_bytes,
    samples,
    service,
)
from trainers.remote.client import TrainingServiceClient
from trainers.remote.trainer import RemoteTrainer
from trainers.remote.wire import (
    ServiceLimits,
    SessionRequest,
)


async def test_repeated_requests_keep_their_key_and_are_counted_once() -> None:
    start = await local().initial_parameters(bytes(32))
    data = samples(12)
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
        await trainer.train(plan_of(3, 1), start, arriving(samples(3)))
        await trainer.aclose()
    first_s, second_s = faults.started_s
    assert second_s - first_s >= 1


async def test_example_too_large_alone_fails_the_step_and_the_client_goes_on() -> None:
    start = await local().initial_parameters(bytes(32))
    large = [(np.zeros(500, "<u2"), np.zeros(500, np.int64))]
    data = samples(6)
    async with service(limits=ServiceLimits(items=9, size=10**6, wire_bytes=700)) as (url, _):
        trainer = remote(url)
        with pytest.raises(TrainerFailed, match="413 the body has more than 700 bytes"):
            await trainer.train(plan_of(7, 2), start, arriving(data + large))
        found = await trainer.train(plan_of(6), start, arriving(data))
        await trainer.aclose()
    assert_close(found, await local().train(plan_of(6), start, arriving(data)))


@pytest.mark.parametrize("status", [400, 422, 404])
async def test_chunk_that_fails_for_good_discards_the_local_step(status: int) -> None:
    start = await local().initial_parameters(bytes(32))
    data = samples(16)
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
        await nobody.train(plan_of(2, 1), start, arriving(samples(2)))
    await nobody.aclose()
    async with service(limits=FEW) as (url, faults):
        patient = RemoteTrainer(client_of(url, bound_s=0.2), MODEL, request, InlineWorker())
        faults.plan = [answering(503, Retry_After="30")]
        with pytest.raises(TrainerFailed, match="503"):
            await patient.train(plan_of(2, 1), start, arriving(samples(2)))
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
        assert (await trainer.train(plan_of(3, 1), start, arriving(samples(3)))).token_count
        await trainer.aclose()


async def test_service_that_does_not_admit_the_client_is_a_user_s_mistake() -> None:
    start = await local().initial_parameters(bytes(32))
    async with service(token="secret") as (url, faults):
        trainer = remote(url)
        with pytest.raises(InvalidInput, match="401 this training service asks for its token"):
            await trainer.train(plan_of(3), start, arriving(samples(3)))
        await trainer.aclose()
        elsewhere = remote(f"{url}/elsewhere")
        with pytest.raises(InvalidInput, match="training service: POST /v1/sessions: 404"):
            await elsewhere.train(plan_of(3), start, arriving(samples(3)))
        await elsewhere.aclose()
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [answering(401)]
        with pytest.raises(InvalidInput, match="401 out of order"):
            await trainer.train(plan_of(3), start, arriving(samples(3)))
        await trainer.aclose()


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
            await trainer.train(plan_of(3, 1), start, arriving(samples(3)))
        await trainer.aclose()


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":3,"metrics":{"loss:sum":1.0,"tokens:sum":NaN}}',
        b'{"items":3,"metrics":{"loss:sum":1.0,"tokens:sum":1e999}}',
        b'{"items":3,"metrics":{"loss:sum":1.0,"tokens:sum":1},"more":1}',
    ],
)
async def test_answer_of_another_shape_fails_the_step_and_the_client_goes_on(body: bytes) -> None:
    start = await local().initial_parameters(bytes(32))
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [acting_and_answering(body)]
        with pytest.raises(TrainerFailed, match="not a valid ChunkAnswer"):
            await trainer.train(plan_of(3, 1), start, arriving(samples(3)))
        assert (await trainer.train(plan_of(3, 1), start, arriving(samples(3)))).token_count
        await trainer.aclose()


async def test_answer_that_cannot_be_decoded_is_asked_for_again_and_counted_once() -> None:
    start = await local().initial_parameters(bytes(32))
    async with service() as (url, faults):
        trainer = remote(url)
        faults.plan = [acting_and_answering(b"no gzip", (b"content-encoding", b"gzip"))]
        trained = await trainer.train(plan_of(3, 1), start, arriving(samples(3)))
        await trainer.aclose()
    assert_close(trained, await local().train(plan_of(3, 1), start, arriving(samples(3))))
    assert len(set(faults.keys)) == 1
    assert len(faults.keys) == 2


async def test_service_whose_limits_allow_nothing_fails_the_step() -> None:
    start = await local().initial_parameters(bytes(32))
    for limits in (ServiceLimits(items=0), ServiceLimits(size=0)):
        async with service(limits=limits) as (url, _):
            trainer = remote(url)
            with pytest.raises(TrainerFailed, match="a limit of 0"):
                await trainer.train(plan_of(3, 1), start, arriving(samples(3)))
            await trainer.aclose()
