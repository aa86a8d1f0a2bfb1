"""Room for the bodies of requests that a training service holds: how many bytes, and how slow they may be.

A body takes room for as many bytes as have arrived, until its request is answered.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.requests import Request

from epochal.runtime.http.bodies import MIN_BODY_BYTES_PER_S, content_length, read_body, steady_body_pieces
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import MAX_PARAMETERS_BYTES

MAX_HELD_BYTES = 4 * MAX_PARAMETERS_BYTES
"""Maximum size of all bodies together that arrive or wait for the arithmetic."""
MAX_BODIES_AT_RATE = 32
"""Number of arriving bodies that share the minimum rate: a client sends several at a time over one line."""


class BodyRoom:
    """The room for bodies. `most_bytes` is the maximum size of all of them together."""

    def __init__(self, most_bytes: int = MAX_HELD_BYTES) -> None:
        self.held_bytes = 0
        """Size of what is held now."""
        self._most_bytes = most_bytes
        self._arriving = 0

    @asynccontextmanager
    async def body(self, request: Request, max_bytes: int) -> AsyncIterator[bytes]:
        """Receive a request's body, and hold its room until the context is left.

        Raises:
            Refused: `overloaded` if there is no room, `body-too-large`, `body-timeout`, `body-incomplete`.
        """
        taken_bytes = 0

        async def arriving() -> AsyncGenerator[bytes]:
            nonlocal taken_bytes
            self._check_room(content_length(request) or 0)
            self._arriving += 1
            try:
                async for piece in steady_body_pieces(request, self._min_bytes_per_s):
                    self._check_room(len(piece))
                    self.held_bytes += len(piece)
                    taken_bytes += len(piece)
                    yield piece
            finally:
                self._arriving -= 1

        try:
            async with aclosing(arriving()) as pieces:
                body = await read_body(request, max_bytes, pieces)
            yield body
        finally:
            self.held_bytes -= taken_bytes

    def _min_bytes_per_s(self) -> float:
        return MIN_BODY_BYTES_PER_S / min(max(1, self._arriving), MAX_BODIES_AT_RATE)

    def _check_room(self, more_bytes: int) -> None:
        if self.held_bytes + more_bytes > self._most_bytes:
            message = f"the service holds {self.held_bytes} bytes of requests; at most {self._most_bytes}"
            raise Refused(Refusal.OVERLOADED, f"{message}; try again in a moment")
