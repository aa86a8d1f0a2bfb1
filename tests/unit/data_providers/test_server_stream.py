"""How long a data server waits for its client, in virtual time."""

import asyncio
import gc
import weakref

import pytest

from epochal.data_providers.tcp.stream import ServerStream
from tests.support.simulate.virtual_time import in_virtual_time

HEARD = b"twelve bytes"


class Reading(asyncio.Transport):
    """A transport that is always read."""

    def is_reading(self) -> bool:
        return True


def heard(stream: ServerStream, data: bytes) -> None:
    """Let the stream receive some bytes."""
    stream.get_buffer(-1)[: len(data)] = data
    stream.buffer_updated(len(data))


def connected() -> ServerStream:
    stream = ServerStream(memoryview(bytearray(64)))
    stream.connection_made(Reading())
    return stream


@in_virtual_time
async def test_wait_begins_anew_with_each_request() -> None:
    stream, loop = connected(), asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(3):
        loop.call_later(6.0, heard, stream, HEARD)
        await stream.until(len(HEARD), 10.0)
        assert stream.take(len(HEARD)) == HEARD
    with pytest.raises(TimeoutError):
        await stream.until(1, 10.0)
    assert loop.time() - began_s == pytest.approx(3 * 6.0 + 10.0)


@in_virtual_time
async def test_shorter_wait_after_a_longer_one_ends_in_its_own_time() -> None:
    stream, loop = connected(), asyncio.get_running_loop()
    loop.call_later(1.0, heard, stream, HEARD)
    await stream.until(len(HEARD), 300.0)
    began_s = loop.time()
    with pytest.raises(TimeoutError):
        await stream.until(len(HEARD) + 1, 5.0)
    assert loop.time() - began_s == pytest.approx(5.0)


@in_virtual_time
async def test_part_of_what_is_awaited_does_not_prolong_the_wait() -> None:
    stream, loop = connected(), asyncio.get_running_loop()
    began_s = loop.time()
    for second in range(1, 5):
        loop.call_later(second, heard, stream, b"x")
    with pytest.raises(TimeoutError):
        await stream.until(5, 4.0)
    assert loop.time() - began_s == pytest.approx(4.0)


@in_virtual_time
async def test_timer_keeps_no_stream_whose_connection_ended() -> None:
    stream, loop = connected(), asyncio.get_running_loop()
    loop.call_later(1.0, stream.connection_lost, None)
    with pytest.raises(ConnectionError):
        await stream.until(1, 300.0)
    kept = weakref.ref(stream)
    del stream
    gc.collect()
    assert kept() is None
