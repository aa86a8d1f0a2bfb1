"""A cheap load generator: raw HTTP/1.1 requests over many persistent connections, one at a time on each."""

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit

WAIT_S = 60.0
CONNECT_AT_ONCE = 100
MAX_FILES = 8192


class Connection(asyncio.Protocol):
    """One persistent connection. `answered_s` is when the last answer was complete (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.answered_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection: {error}"))

    def send(self, request: bytes) -> asyncio.Future[None]:
        """Send a request; the future is done when its answer is complete."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return
        self.answered_s = time.perf_counter()
        self.status, self.body, self._buffer = int(head.split(b" ", 2)[1]), rest, b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def request_bytes(method: str, path: str, body: bytes = b"", token: str = "") -> bytes:
    """Return a request as it is sent over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if method in ("POST", "PUT"):
        kind = "json" if method == "POST" else "octet-stream"
        lines += [f"Content-Length: {len(body)}", f"Content-Type: application/{kind}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def all_answered(answers: Iterable[asyncio.Future[None]]) -> None:
    """Wait until every answer is complete.

    Raises:
        TimeoutError: an answer took longer than `WAIT_S`.
        ConnectionError: the server closed a connection instead.
    """
    async with asyncio.timeout(WAIT_S):
        for answer in answers:
            await answer


@contextlib.asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[Connection]]:
    """Yield `count` persistent connections to the server at `url`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_FILES)), hard))
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 0
    loop = asyncio.get_running_loop()
    opened: list[Connection] = []
    try:
        while len(opened) < count:
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
                coming = [
                    tasks.create_task(loop.create_connection(Connection, host, port))
                    for _ in range(min(CONNECT_AT_ONCE, count - len(opened)))
                ]
            opened += [task.result()[1] for task in coming]
        yield opened
    finally:
        for connection in opened:
            connection.close()
