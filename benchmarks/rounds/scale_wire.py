"""The connections of a load of members: raw HTTP/1.1, one request at a time, to one of a run's coordinators."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

from epochal.state.errors import EpochalError

RETRY_S = 1.0
"""Time after which a refused request is sent again: the coordinator's `Retry-After`."""
CONNECT_AGAIN_S = 0.1
"""Time between two attempts to connect, as clients wait at first."""
LOST_S = 30.0
"""Maximum time in which a coordinator must be found that answers."""
NO_ANSWER = 0
"""In place of a status: the connection was closed."""

OnAnswer = Callable[[int, bytes], None]


class Exchange(asyncio.Protocol):
    """One persistent connection on which one request at a time is answered to a callback."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._on_answer: OnAnswer | None = None
        self.is_closed = False
        self.head = b""
        """The last answer's, in lower case."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self.is_closed = True
        if self._on_answer is not None:
            on_answer, self._on_answer = self._on_answer, None
            on_answer(NO_ANSWER, b"the server closed the connection")

    def ask(self, request: bytes, on_answer: OnAnswer) -> None:
        """Send a request; `on_answer` is called with its answer's status and body, or with `NO_ANSWER`."""
        assert self._transport is not None
        if self.is_closed:
            asyncio.get_running_loop().call_soon(on_answer, NO_ANSWER, b"the server closed the connection")
            return
        self._on_answer = on_answer
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + length:
            return
        self.head, body, self._buffer = head, self._buffer[end + 4 :], b""
        if self._on_answer is not None:
            on_answer, self._on_answer = self._on_answer, None
            on_answer(int(head[9:12]), body)

    def close(self) -> None:
        """End the connection; nobody is told."""
        self._on_answer = None
        if self._transport is not None:
            self._transport.abort()


class Addresses:
    """Where the coordinators of a run are.

    Args:
        urls: one for each.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        parsed = [urlsplit(url) for url in urls]
        self._places = [(url.hostname or "", url.port or 0) for url in parsed]

    async def connect(self, number: int) -> Exchange:
        """Return a new connection to the coordinator of this number, in turn, or to the next one that takes it.

        Raises:
            EpochalError: none takes one for `LOST_S`.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOST_S
        while True:
            host, port = self._places[number % len(self._places)]
            try:
                _, made = await loop.create_connection(Exchange, host, port)
            except OSError as error:
                if loop.time() > until_s:
                    raise EpochalError(f"no coordinator takes a connection: {error}") from error
            else:
                return made
            number += 1
            await asyncio.sleep(CONNECT_AGAIN_S)


class Line:
    """A connection on which a task asks, and waits for each answer; it is made when needed, and again when lost.

    Args:
        addresses: where the coordinators are.
        number: which of them is asked first.
        on_refusal: told of each refusal that passes, after which the request is sent again.
    """

    def __init__(self, addresses: Addresses, number: int, on_refusal: OnAnswer) -> None:
        self._addresses = addresses
        self._number = number
        self._on_refusal = on_refusal
        self._exchange: Exchange | None = None

    async def answer(self, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an answer, of the first that is not lost and no 503.

        Raises:
            EpochalError: none came for `LOST_S`.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOST_S
        while True:
            if self._exchange is None or self._exchange.is_closed:
                self._exchange = await self._addresses.connect(self._number)
            answered: asyncio.Future[tuple[int, bytes]] = loop.create_future()
            self._exchange.ask(request, partial(_set, answered))
            status, body = await answered
            if status not in (NO_ANSWER, 503):
                return status, body
            self._on_refusal(status, body)
            if loop.time() > until_s:
                raise EpochalError(f"no coordinator answers: {status} {body[:300]!r}")
            self._number += status == NO_ANSWER
            await asyncio.sleep(CONNECT_AGAIN_S if status == NO_ANSWER else RETRY_S)

    def close(self) -> None:
        """End the connection."""
        if self._exchange is not None:
            self._exchange.close()


def _set(answered: asyncio.Future[tuple[int, bytes]], status: int, body: bytes) -> None:
    if not answered.done():
        answered.set_result((status, body))
