"""Rounds trained on a training service over real HTTP: the same numbers as at home."""

import asyncio
from typing import Any

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send

from batching.chunking.policies import NUMBERS
from runtime.worker_thread import InlineWorker
from state.errors import TrainerFailed
from tests.support.served_training import (
    FEW,
    Faults,
    HandClock,
    arriving,
    assert_close,
    local,
    plan_of,
    remote,
    same_bytes,
    samples,
    service,
)
from trainers.remote import trainer as remote_trainer
from trainers.remote.wire import (
    ServiceLimits,
)
from training_service.app import create_app
from training_service.service import TrainingServiceOptions
from training_service.sessions import SessionBounds


@pytest.mark.parametrize("limits", [ServiceLimits(), FEW, ServiceLimits(1, 1, 100_000)])
async def test_remote_round_is_the_local_one_however_it_is_cut(limits: ServiceLimits) -> None:
    start = await local().initial_parameters(bytes(32))
    data = samples(40)
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
    data = samples(300)
    async with service() as (url, _):  # the service takes 1,024 items, the policy 128
        trainer = remote(url, policy=NUMBERS)
        await trainer.train(plan_of(300, 1), start, arriving(data))
        await trainer.aclose()
    assert trainer.metrics.chunks == 3
    assert trainer.metrics.estimated_bytes == 2 * sum(len(tokens) for tokens, _ in data)


async def test_inner_state_is_kept_only_of_rounds_that_count() -> None:
    here = local("keep")
    start = await here.initial_parameters(bytes(32))
    async with service() as (url, _):
        there = remote(url, "keep")
        for number, counts in enumerate([True, False, True, True]):
            data = samples(9, number)
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
            data = samples(9, number)
            expected = await here.train(plan_of(9), start, arriving(data))
            assert_close(await there.train(plan_of(9), start, arriving(data)), expected)
            here.commit_inner_state()
            there.commit_inner_state()
            with pytest.raises(TrainerFailed, match="tensors"):
                await there.train(plan_of(9), bad, arriving(data))
        await there.aclose()


async def test_chunk_that_is_too_large_for_the_wire_is_split_and_counted_once() -> None:
    start = await local().initial_parameters(bytes(32))
    data = samples(20)
    expected = await local().train(plan_of(20, 1), start, arriving(data))
    async with service(limits=ServiceLimits(items=20, size=10**6, wire_bytes=600)) as (url, _):
        trainer = remote(url)
        found = await trainer.train(plan_of(20, 1), start, arriving(data))
        await trainer.aclose()
    assert_close(found, expected)
    assert trainer.metrics.splits > 1


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
        trained = await trainer.train(plan_of(40, 1), start, arriving(samples(40)))
        await trainer.aclose()
    assert trained.token_count
    assert len(faults.keys) == 40
    assert 1 <= most <= 3


async def test_service_that_started_anew_gets_a_new_session() -> None:
    start = await local().initial_parameters(bytes(32))
    data = samples(5)
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
            task = group.create_task(trainer.train(plan_of(8, 1), start, arriving(samples(8))))
            await reached.wait()
            task.cancel()
        found = await trainer.train(plan_of(8, 1), start, arriving(samples(8)))
        await trainer.aclose()
    assert_close(found, await local().train(plan_of(8, 1), start, arriving(samples(8))))
