"""`run_manager/exchange.py`: each blob is fetched once, verified, and kept as long as it may be needed."""

import asyncio
from typing import ClassVar

import pytest

from epochal.run_manager.exchange import FETCHES_BEFORE_GIVING_UP, KEPT_ROUNDS, Exchange
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.files.spool_part import ReceivedBytes
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused
from epochal.state.messages.deliveries import MAX_DELIVERED_BYTES
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.held_blobs import HeldBlobs
from tests.support.data.spooled import SPOOL_PARENT, spooled


def exchange_of(held: HeldBlobs) -> Exchange:
    return Exchange(held, Spool(SPOOL_PARENT))


async def fetched(exchange: Exchange, data: bytes) -> SpoolFile:
    return await exchange.fetch(sha256_hex(data), len(data))


async def bytes_of(exchange: Exchange, data: bytes) -> bytes:
    return (await fetched(exchange, data)).to_bytes()


async def test_concurrent_fetches_of_one_blob_ask_once_if_one_is_cancelled() -> None:
    data = b"result"
    held = HeldBlobs(data)
    exchange = exchange_of(held)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bytes_of(exchange, data)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
    assert [task.result() for task in tasks[1:]] == [data] * 3
    assert await bytes_of(exchange, data) == data
    assert held.asked.total() <= 2


async def test_other_bytes_than_asked_for_are_never_returned() -> None:
    held = HeldBlobs()
    held.blobs[sha256_hex(b"right")] = b"wrong"
    with pytest.raises(InvalidDocument):
        await fetched(exchange_of(held), b"right")


async def test_body_that_is_too_long_is_not_kept_and_is_fetched_anew() -> None:
    class Longer(HeldBlobs):
        sizes: ClassVar[list[int]] = []

        async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
            self.asked[sha256] += 1
            try:
                for _ in range(99):
                    file.append(b"right")
            finally:
                self.sizes.append(file.size_bytes)

    held = Longer()
    with pytest.raises(InvalidDocument, match="followed by"):
        await fetched(exchange_of(held), b"right, and longer")
    assert held.asked.total() == FETCHES_BEFORE_GIVING_UP
    assert held.sizes == [15] * FETCHES_BEFORE_GIVING_UP


async def test_swapped_blob_is_fetched_anew_from_its_beginning() -> None:
    class Swapping(HeldBlobs):
        async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
            await super().get_blob(sha256, file)
            self.blobs[sha256] = b"right, and longer"

    held = Swapping()
    held.blobs[sha256_hex(b"right, and longer")] = b"wrong"
    assert await bytes_of(exchange_of(held), b"right, and longer") == b"right, and longer"


def commitment_to(file: SpoolFile) -> ResultCommitment:
    return ResultCommitment(1, 0, file.sha256(), file.size_bytes, ResultMetrics(1.0, 8, 0.5))


@pytest.mark.parametrize("size_bytes", [4, MAX_DELIVERED_BYTES + 1], ids=["with its commitment", "after it"])
@pytest.mark.parametrize("takes_deliveries", [True, False])
async def test_own_result_is_published_and_not_fetched(size_bytes: int, takes_deliveries: bool) -> None:
    held = HeldBlobs()
    held.takes_deliveries = takes_deliveries
    exchange, file = exchange_of(held), spooled(b"m" * size_bytes)
    await exchange.publish(commitment_to(file), file)
    assert held.reports == [commitment_to(file)]
    assert await exchange.fetch(file.sha256(), file.size_bytes) is file
    assert held.blobs == {file.sha256(): b"m" * size_bytes}
    assert not held.asked


async def test_fetch_that_broke_off_goes_on_with_what_has_arrived() -> None:
    data = bytes(range(200))

    class Breaking(HeldBlobs):
        async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
            self.asked[sha256] += 1
            start = file.size_bytes
            file.append(data[start : start + 50])
            if file.size_bytes < len(data):
                raise CoordinatorUnreachable("the line broke")

    held = Breaking()
    exchange = exchange_of(held)
    for _ in range(3):
        with pytest.raises(CoordinatorUnreachable):
            await fetched(exchange, data)
    assert await bytes_of(exchange, data) == data
    assert held.asked.total() == 4


async def test_fetch_that_broke_off_after_the_last_byte_is_whole() -> None:
    class BreakingAtTheEnd(HeldBlobs):
        async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
            if file.size_bytes >= len(self.blobs[sha256]):
                raise Refused(Refusal.RANGE_NOT_SATISFIABLE, "nothing follows")
            await super().get_blob(sha256, file)
            raise CoordinatorUnreachable("the line broke")

    held = BreakingAtTheEnd(b"data")
    exchange = exchange_of(held)
    with pytest.raises(CoordinatorUnreachable):
        await fetched(exchange, b"data")
    assert await bytes_of(exchange, b"data") == b"data"
    held.blobs[sha256_hex(b"right")] = b"wrung"
    with pytest.raises(CoordinatorUnreachable):
        await fetched(exchange, b"right")
    held.blobs[sha256_hex(b"right")] = b"right"
    with pytest.raises(CoordinatorUnreachable):
        await fetched(exchange, b"right")
    assert await bytes_of(exchange, b"right") == b"right"


async def test_forgotten_blob_is_fetched_again() -> None:
    held = HeldBlobs(b"one", b"two")
    exchange = exchange_of(held)
    for _ in range(2):
        await fetched(exchange, b"one")
        await fetched(exchange, b"two")
        exchange.forget([sha256_hex(b"one")])
    assert held.asked == {sha256_hex(b"one"): 2, sha256_hex(b"two"): 1}


async def test_blob_that_nobody_forgets_is_dropped_after_the_next_round() -> None:
    held = HeldBlobs(b"late", b"used")
    exchange = exchange_of(held)
    await fetched(exchange, b"late")
    for _ in range(KEPT_ROUNDS):
        await fetched(exchange, b"used")
        exchange.begin_round()
    await fetched(exchange, b"used")
    await fetched(exchange, b"late")
    assert held.asked == {sha256_hex(b"late"): 2, sha256_hex(b"used"): 1}
