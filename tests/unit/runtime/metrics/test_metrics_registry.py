"""Counting HTTP requests that fail, and ones that are cancelled."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from epochal.runtime.metrics.metrics_registry import HttpMetrics, MeasuredRequests

SCOPE = {"type": "http", "method": "GET"}
NAMELESS = {"method": "(none)", "route": "(none)"}


async def receive() -> Message:
    return {"type": "http.request", "body": b""}


async def send(_: Message) -> None:
    """Take the answer."""


async def call(app: object, registry: CollectorRegistry) -> None:
    await MeasuredRequests(app, HttpMetrics(registry))(dict(SCOPE), receive, send)  # type: ignore[arg-type]


async def test_request_that_fails_is_counted_as_an_internal_refusal() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("a bug")

    registry = CollectorRegistry()
    with pytest.raises(ValueError, match="a bug"):
        await call(failing, registry)
    read = registry.get_sample_value
    assert read("epochal_http_request_duration_seconds_count", NAMELESS | {"status": "5xx"}) == 1
    assert read("epochal_http_refusals_total", {"reason": "internal"}) == 1


async def test_request_cancelled_before_its_answer_is_not_counted() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    registry = CollectorRegistry()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(call(endless, registry))
        await asyncio.sleep(0)
        waiting.cancel()
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert samples == []
