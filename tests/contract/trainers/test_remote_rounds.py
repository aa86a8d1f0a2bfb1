"""Rounds trained on a training service over real HTTP: the same numbers as on one machine."""

import asyncio

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send

from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import TrainerFailed
from epochal.trainers.remote import remote_trainer as remote_trainer
from epochal.trainers.remote.service_messages import ServiceLimits
from epochal.training_service.service import TrainingServiceOptions
from epochal.training_service.service_app import create_app
from epochal.training_service.sessions import SessionBounds
from tests.support.drive.served_training import (
    FEW,
    START,
    Faults,
    HandClock,
    assert_close,
    local,
    remote,
    samples,
    train,
)
from tests.support.models.local_training import bytes_of


@pytest.mark.parametrize("limits", [ServiceLimits(), FEW, ServiceLimits(1, 1, 100_000)])
async def test_remote_round_is_the_local_one_however_it_is_cut(limits: ServiceLimits) -> None:
    data = samples(40)
    async with remote(limits=limits) as (trainer, faults):
        assert bytes_of(await trainer.initial_parameters(bytes(32))) == bytes_of(START)
        found = await train(trainer, data)
    assert_close(found, await train(local(), data))
    chunks = {1024: 3, 4: 12, 1: 40}[limits.items]
    metrics = trainer.metrics
    assert (metrics.local_steps, metrics.items, metrics.chunks) == (3, 40, chunks)
    assert len(faults.keys) == len(set(faults.keys)) == chunks
    assert metrics.wire_bytes > 0


async def test_inner_state_is_kept_only_of_rounds_that_count() -> None:
    here = local("keep")
    async with remote("keep") as (there, _):
        for number, counts in enumerate([True, False, True, True]):
            data = samples(9, number)
            for trainer in (here, there):
                trainer.roll_back_inner_state()  # as a step does before it trains; what was committed stays
            assert_close(await train(there, data), await train(here, data))
            for trainer in (here, there):
                if counts:
                    trainer.commit_inner_state()
                else:
                    trainer.roll_back_inner_state()


async def test_forgotten_inner_state_is_in_no_later_round() -> None:
    async with remote("keep") as (there, _):
        await train(there, samples(9, 0))
        there.commit_inner_state()
        there.forget_inner_state()
        here = local("keep")
        for number in (1, 2):
            data = samples(9, number)
            assert_close(await train(there, data), await train(here, data))
            here.commit_inner_state()
            there.commit_inner_state()


async def test_inner_state_outlives_a_round_that_could_not_begin() -> None:
    here, bad = local("keep"), {"w": np.zeros(1, np.float32)}
    async with remote("keep") as (there, _):
        for number in range(2):
            data = samples(9, number)
            assert_close(await train(there, data), await train(here, data))
            here.commit_inner_state()
            there.commit_inner_state()
            with pytest.raises(TrainerFailed, match="tensors"):
                await train(there, data, start=bad)


async def test_requests_under_way_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_trainer, "MAX_REQUESTS_IN_FLIGHT", 3)
    under_way, most = 0, 0

    async def counting(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await faults.app(scope, receive, send)
        under_way -= 1

    async with remote(limits=ServiceLimits(items=1)) as (trainer, faults):
        faults.plan = [counting] * 40
        assert (await train(trainer, samples(40), 1)).token_count
    assert len(faults.keys) == 40
    assert 1 <= most <= 3


async def test_service_that_was_restarted_gets_a_new_session() -> None:
    async with remote(sessions=SessionBounds(1, 10.0)) as (trainer, faults):
        first, app = await train(trainer, samples(5)), faults.app
        faults.app = create_app(TrainingServiceOptions(), InlineWorker(), HandClock())  # at the same address
        second = await train(trainer, samples(5))
        faults.app = app
    assert bytes_of(first.difference) == bytes_of(second.difference)


@pytest.mark.nightly
async def test_cancelled_round_is_discarded_and_the_next_one_begins_anew() -> None:
    reached = asyncio.Event()

    async def hanging(faults: Faults, scope: Scope, receive: Receive, send: Send) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with remote(limits=FEW) as (trainer, faults):
        faults.plan = [None, hanging]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(train(trainer, samples(8), 1))
            await reached.wait()
            task.cancel()
        assert_close(await train(trainer, samples(8), 1), await train(local(), samples(8), 1))
