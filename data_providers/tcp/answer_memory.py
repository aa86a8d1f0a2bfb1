"""The memory of a data server's answers under way: bounded in total, and shared fairly between the clients."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from epochal.data_providers.protocol import SourceUnavailable
from epochal.state.wire import ClientId

CHECK_PERIOD_S = 0.5
"""Time after which a waiting request searches again for answers that must give way."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that waits for memory."""

    client_id: ClientId
    size_bytes: int
    granted: asyncio.Future[None]


class AnswerMemory:
    """A number of bytes that answers hold. Who holds the least is served first, then who came first.

    Args:
        most_bytes: held by all answers together; a larger answer is held alone.
        wait_s: maximum time that a request waits.
        make_room: called now and then while requests wait: ends the answers that are received too slowly.
    """

    def __init__(self, most_bytes: int, wait_s: float, make_room: Callable[[], None]) -> None:
        self._most_bytes = most_bytes
        self._wait_s = wait_s
        self._make_room = make_room
        self._held: Counter[ClientId] = Counter()
        self._waiting: list[_Waiting] = []
        self.held_bytes = 0

    @property
    def waiting_count(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def hold(self, client_id: ClientId, size_bytes: int) -> AsyncIterator[Callable[[int], None]]:
        """Hold memory for an answer to this client, for the time of `async with`; yield what reduces it to its size.

        Raises:
            SourceUnavailable: the others did not end in time; retry.
        """
        waiting = _Waiting(client_id, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._grant()

        def shrink(to_bytes: int) -> None:
            nonlocal size_bytes
            given_back = max(0, size_bytes - to_bytes)
            size_bytes -= given_back
            self.held_bytes -= given_back
            self._held[client_id] -= given_back
            self._grant()

        try:
            if not waiting.granted.done():
                await self._granted(waiting)
            yield shrink
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self.held_bytes -= size_bytes
                self._held[client_id] -= size_bytes
                if not self._held[client_id]:
                    del self._held[client_id]
            self._grant()

    async def _granted(self, waiting: _Waiting) -> None:
        """Return once the memory is granted."""
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    done, _ = await asyncio.wait([waiting.granted], timeout=CHECK_PERIOD_S)
                    if done:
                        return
                    self._make_room()
        except TimeoutError:
            if waiting.granted.done():
                return
            held = f"answers of {self.held_bytes} bytes are under way, the maximum"
            raise SourceUnavailable(f"the data server is busy: {held}") from None

    def _grant(self) -> None:
        """Give what is free to those who hold the least, without passing anyone over whose answer is too large."""
        while self._waiting:
            first = min(self._waiting, key=lambda waiting: self._held[waiting.client_id])
            if self.held_bytes and self.held_bytes + first.size_bytes > self._most_bytes:
                return
            self._waiting.remove(first)
            self.held_bytes += first.size_bytes
            self._held[first.client_id] += first.size_bytes
            first.granted.set_result(None)
