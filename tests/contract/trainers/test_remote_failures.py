"""A remote trainer whose training service fails, refuses or sends nonsense: the step fails, the client continues."""

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send

from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.trainers.remote.service_client import TrainingServiceClient
from epochal.trainers.remote.service_messages import ServiceLimits
from tests.support.bounds import BOUND_S
from tests.support.drive.served_training import (
    FEW,
    Faults,
    HandClock,
    answering,
    assert_close,
    client_of,
    local,
    losing_the_answer,
    remote,
    remote_at,
    samples,
    service,
    train,
)
from tests.support.models.local_training import bytes_of


async def test_repeated_requests_keep_their_key_and_are_counted_once() -> None:
    data = samples(12)
    async with remote(limits=FEW) as (trainer, faults):
        expected = await train(trainer, data)
        faults.keys.clear()
        faults.plan = [losing_the_answer, None, answering(503, Retry_After="0"), answering(429), losing_the_answer]
        found = await train(trainer, data)
    assert bytes_of(found.difference) == bytes_of(expected.difference)
    assert found.loss == expected.loss
    assert len(faults.keys) == 3 + 4
    assert len(set(faults.keys)) == 3


async def test_service_that_says_when_to_come_again_is_asked_no_sooner() -> None:
    async with remote() as (trainer, faults):
        faults.plan = [answering(503, Retry_After="1")]
        await train(trainer, samples(3), 1)
    first_s, second_s = faults.started_s
    assert second_s - first_s >= 1


async def test_example_too_large_alone_fails_the_step_and_the_client_goes_on() -> None:
    large = [(np.zeros(500, "<u2"), np.zeros(500, np.int64))]
    data = samples(6)
    async with remote(limits=ServiceLimits(items=9, size=10**6, wire_bytes=700)) as (trainer, _):
        with pytest.raises(TrainerFailed, match="413 the body has more than 700 bytes"):
            await train(trainer, data + large, 2)
        assert_close(await train(trainer, data), await train(local(), data))


@pytest.mark.parametrize("status", [400, 422, 404])
async def test_chunk_that_fails_for_good_discards_the_local_step(status: int) -> None:
    data = samples(16)
    async with remote(limits=FEW) as (trainer, faults):
        faults.plan = [None, None, answering(status)]
        with pytest.raises(TrainerFailed, match=f"step 5: training service: .*: {status} out of order"):
            await train(trainer, data, 1, step=5)
        assert_close(await train(trainer, data, 1), await train(local(), data, 1))


async def test_examples_that_the_model_cannot_learn_are_said() -> None:
    async with remote() as (trainer, _):
        with pytest.raises(TrainerFailed, match="token 256; the model knows bytes only"):
            await train(trainer, [(np.array([7, 256], "<u2"), np.array([7, 8]))])


async def test_service_that_never_answers_fails_the_step_in_bounded_time() -> None:
    async with remote_at(client_of("http://127.0.0.1:9", bound_s=0.2)) as trainer:
        with pytest.raises(TrainerFailed, match="does not answer"):
            await train(trainer, samples(2))
    async with service(limits=FEW) as (url, faults), remote_at(client_of(url, bound_s=0.2)) as trainer:
        faults.plan = [answering(503, Retry_After="30")]
        with pytest.raises(TrainerFailed, match="503"):
            await train(trainer, samples(2), 1)


async def test_answer_that_took_longer_than_the_bound_is_requested_again() -> None:
    clock = HandClock()

    async def gateway_gives_up(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        clock.now_s += 2 * BOUND_S
        await answering(504)(faults, scope, receive, send)

    async with service() as (url, faults):
        faults.plan = [gateway_gives_up]
        client = TrainingServiceClient(url, RetryPolicy(clock, lambda: 0.0, BOUND_S))
        async with remote_at(client) as trainer:
            assert (await train(trainer, samples(3), 1)).token_count


@pytest.mark.parametrize(
    ("path", "token", "message"),
    [
        ("", "secret", "401 this training service asks for its token"),
        ("/elsewhere", None, "training service: POST /v1/sessions: 404"),
        ("", None, "401 out of order"),
    ],
)
async def test_service_that_does_not_admit_the_client_is_a_user_s_mistake(
    path: str, token: str | None, message: str
) -> None:
    async with service(token=token) as (url, faults), remote_at(client_of(url + path)) as trainer:
        faults.plan = [answering(401)]
        with pytest.raises(InvalidInput, match=message):
            await train(trainer, samples(3))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"items":2,"nats":1.0,"tokens":9}', "counts 2 examples in a chunk of 3"),
        (b'{"items":3,"nats":NaN,"tokens":9}', "not a valid ChunkAnswer"),
        (b'{"items":3,"nats":1.0,"tokens":9,"more":1}', "not a valid ChunkAnswer"),
    ],
)
async def test_answer_of_another_shape_fails_the_step_and_the_client_goes_on(body: bytes, message: str) -> None:
    async with remote() as (trainer, faults):
        faults.plan = [answering(200, body, acts=True)]
        with pytest.raises(TrainerFailed, match=message):
            await train(trainer, samples(3), 1)
        assert (await train(trainer, samples(3), 1)).token_count


async def test_answer_that_cannot_be_decoded_is_asked_for_again_and_counted_once() -> None:
    async with remote() as (trainer, faults):
        faults.plan = [answering(200, b"no gzip", acts=True, content_encoding="gzip")]
        assert_close(await train(trainer, samples(3), 1), await train(local(), samples(3), 1))
    assert len(faults.keys) == 2
    assert len(set(faults.keys)) == 1


@pytest.mark.parametrize("limits", [ServiceLimits(items=0), ServiceLimits(size=0)])
async def test_service_whose_limits_allow_nothing_fails_the_step(limits: ServiceLimits) -> None:
    async with remote(limits=limits) as (trainer, _):
        with pytest.raises(TrainerFailed, match="a limit of 0"):
            await train(trainer, samples(3), 1)
