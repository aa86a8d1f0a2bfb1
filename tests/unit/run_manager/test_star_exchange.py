"""`run_manager/exchange/star.py`: each blob is fetched once, verified, and kept within a bound."""

import asyncio

import numpy as np
import pytest

from run_manager.exchange.star import StarExchange
from runtime.worker_thread import InlineWorker
from state.errors import InvalidDocument
from state.tensors import stream_of
from state.wire import sha256_hex
from tests.support.held_blobs import HeldBlobs


async def test_concurrent_fetches_of_one_blob_ask_once_if_one_is_cancelled() -> None:
    data = b"result"
    held = HeldBlobs(data)
    exchange = StarExchange(held, InlineWorker())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(exchange.fetch(sha256_hex(data))) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
    assert [task.result() for task in tasks[1:]] == [data] * 3
    assert await exchange.fetch(sha256_hex(data)) == data
    assert held.asked.total() <= 2


async def test_other_bytes_than_asked_for_are_never_returned() -> None:
    held = HeldBlobs()
    held.blobs[sha256_hex(b"right")] = b"wrong"
    with pytest.raises(InvalidDocument):
        await StarExchange(held, InlineWorker()).fetch(sha256_hex(b"right"))


async def test_own_tensors_are_not_fetched_and_never_become_bytes() -> None:
    held = HeldBlobs()
    exchange = StarExchange(held, InlineWorker())
    result = stream_of({"w": np.ones(3, np.float32)}, {})
    await exchange.publish(result.sha256(), result)
    assert await exchange.fetch(result.sha256()) is result
    assert held.blobs == {result.sha256(): result.to_bytes()}
    assert not held.asked


async def test_cache_stays_within_its_bytes() -> None:
    blobs = [bytes([number]) * 40 for number in range(4)]
    held = HeldBlobs(*blobs)
    exchange = StarExchange(held, InlineWorker(), cache_bytes=100)
    for data in (*blobs, blobs[3], blobs[2], blobs[0]):
        assert await exchange.fetch(sha256_hex(data)) == data
    assert held.asked.total() == 5


async def test_forgotten_blob_is_fetched_again() -> None:
    held = HeldBlobs(b"one", b"two")
    exchange = StarExchange(held, InlineWorker())
    for _ in range(2):
        await exchange.fetch(sha256_hex(b"one"))
        await exchange.fetch(sha256_hex(b"two"))
        exchange.forget([sha256_hex(b"one")])
    assert held.asked == {sha256_hex(b"one"): 2, sha256_hex(b"two"): 1}
