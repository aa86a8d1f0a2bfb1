"""Room for the bodies of requests that a training service holds: how many bytes, of whom, and how slow they may be.

A body takes room for as many bytes as have arrived, until its request is answered. One sender cannot take all room.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.requests import Request

from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.http.bodies import MIN_BODY_BYTES_PER_S, content_length, read_body, steady_body_pieces
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import MAX_PARAMETERS_BYTES

MAX_HELD_BYTES = 4 * MAX_PARAMETERS_BYTES
"""Maximum size of all bodies together that arrive or wait for the arithmetic."""
MAX_PERCENT_OF_SENDER = 75
"""Maximum part of the room, and of the places for sessions, that one address takes. Many clients may share one."""
MAX_SENDER_BODIES_AT_RATE = 32
"""Number of bodies of one sender that share its minimum rate: a client sends as many at a time over one line."""


def sender_of_request(request: Request) -> str:
    """Return the sender that a request comes from, by its address."""
    host, _ = request.scope.get("client") or ("", 0)
    return sender_of(host)


class BodyRoom:
    """The room for bodies. `most_bytes` is the maximum size of all of them together."""

    def __init__(self, most_bytes: int = MAX_HELD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._most_bytes_of_sender = most_bytes * MAX_PERCENT_OF_SENDER // 100
        self._held_bytes = 0
        self._bytes: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """Size of what is held now."""
        return self._held_bytes

    @asynccontextmanager
    async def body(self, request: Request, max_bytes: int) -> AsyncIterator[bytes]:
        """Receive a request's body, and hold its room until the context is left.

        Raises:
            Refused: `overloaded` if there is no room, `body-too-large`, `body-timeout`, `body-incomplete`.
        """
        sender, taken = sender_of_request(request), _Taken()
        try:
            async with aclosing(self._arriving_pieces(request, sender, taken)) as pieces:
                body = await read_body(request, max_bytes, pieces)
            yield body
        finally:
            self._held_bytes -= taken.bytes
            _subtract(self._bytes, sender, taken.bytes)

    async def _arriving_pieces(self, request: Request, sender: str, taken: "_Taken") -> AsyncGenerator[bytes]:
        self._check_room(sender, content_length(request) or 0)
        self._arriving[sender] += 1
        try:
            async for piece in steady_body_pieces(request, lambda: self._min_bytes_per_s(sender)):
                self._check_room(sender, len(piece))
                self._held_bytes += len(piece)
                self._bytes[sender] += len(piece)
                taken.bytes += len(piece)
                yield piece
        finally:
            _subtract(self._arriving, sender, 1)

    def _min_bytes_per_s(self, sender: str) -> float:
        return MIN_BODY_BYTES_PER_S / min(max(1, self._arriving[sender]), MAX_SENDER_BODIES_AT_RATE)

    def _check_room(self, sender: str, more_bytes: int) -> None:
        all_bytes, of_sender = self.held_bytes + more_bytes, self._bytes[sender] + more_bytes
        if all_bytes > self._most_bytes or of_sender > self._most_bytes_of_sender:
            raise Refused(
                Refusal.OVERLOADED,
                f"the service holds {self.held_bytes} bytes of requests, {self._bytes[sender]} of this sender; at most "
                f"{self._most_bytes}, {self._most_bytes_of_sender} of one sender; try again in a moment",
            )


class _Taken:
    """Number of bytes of one body that have arrived."""

    def __init__(self) -> None:
        self.bytes = 0


def _subtract(counts: Counter[str], sender: str, less: int) -> None:
    counts[sender] -= less
    if not counts[sender]:
        del counts[sender]
