"""What a request for one range costs beyond its bytes."""

import asyncio
import socket

from epochal.data_providers.sources.byte_source import run_bounded
from epochal.data_providers.sources.http.http1 import SCRATCH_BYTES, Head, HttpConnection

BODY = bytes(range(256)) * 400
ANSWER = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


class Counted:
    """A body that counts the bytes that were copied into their place."""

    def __init__(self) -> None:
        self.into = bytearray(len(BODY))
        self.filled = self.copied = 0

    def direct(self) -> memoryview | None:
        return memoryview(self.into)[self.filled :]

    def wrote(self, count: int) -> None:
        self.filled += count

    def feed(self, data: memoryview) -> None:
        self.into[self.filled : self.filled + len(data)] = data
        self.filled += len(data)
        self.copied += len(data)

    def finish(self) -> None:
        """Nothing is checked."""


async def test_body_that_comes_with_its_head_is_hardly_copied() -> None:
    ours, theirs = socket.socketpair()
    scratch, body = memoryview(bytearray(SCRATCH_BYTES)), Counted()
    with theirs:
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(scratch), sock=ours
        )

        def choose(_: Head) -> Counted:
            return body

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            head = group.create_task(connection.exchange(b"GET / HTTP/1.1\r\n\r\n", choose))
            await asyncio.to_thread(theirs.recv, 100)
            theirs.sendall(ANSWER)
        transport.abort()
        await connection.closed
    assert head.result().length == len(BODY)
    assert bytes(body.into) == BODY
    assert body.copied < len(BODY) // 4


async def test_one_item_is_worked_on_without_another_task() -> None:
    tasks = []

    async def job(_: int) -> None:
        tasks.append(asyncio.current_task())

    await run_bounded(job, [1], 8)
    assert tasks == [asyncio.current_task()]
