"""Requests that wait for the arithmetic: so many and no more, and each is answered."""

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from epochal.runtime.clock import SystemClock
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import SessionRequest
from epochal.training_service.metrics import TrainingMetrics
from epochal.training_service.service import TrainingService, TrainingServiceOptions
from tests.support.bounds import BOUND_S
from tests.support.drive.served import SPEC


async def test_requests_beyond_the_bound_are_refused_until_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.training_service.service.MAX_WAITING", 2)
    worker, goes_on = WorkerThread("arithmetic"), threading.Event()
    metrics = TrainingMetrics(CollectorRegistry())
    service = TrainingService(TrainingServiceOptions(), worker, SystemClock(), metrics)
    session_id = service.open(SessionRequest(SPEC, None)).session_id
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(service.run(session_id, lambda _: goes_on.wait(BOUND_S))) for _ in range(2)]
        await asyncio.sleep(0)  # both have begun
        assert not service.accepting
        with pytest.raises(Refused, match="too many requests are waiting") as refused:
            await service.run(session_id, lambda _: True)
        assert refused.value.kind == Refusal.OVERLOADED
        goes_on.set()
        assert [await one for one in held] == [True, True]
        assert await service.run(session_id, lambda _: "answered") == "answered"
    await worker.aclose()
