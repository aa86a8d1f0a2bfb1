"""Parts of an HTTP server's connection in less memory: of thousands that wait, each holds all of them.

An `asyncio.Event` and a `collections.deque` hold 700 bytes each from their start on, and a connection has three of them
that are hardly ever used.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl


class LeanEvent:
    """An event as asyncio's, which takes room only while somebody waits."""

    __slots__ = ("_event", "_is_set")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wake everybody who waits; later ones do not wait until it is cleared."""
        self._is_set = True
        event, self._event = self._event, None
        if event is not None:
            event.set()

    def clear(self) -> None:
        """Let those who come later wait."""
        self._is_set = False

    async def wait(self) -> bool:
        """Return True once it is set."""
        if not self._is_set:
            self._event = self._event or asyncio.Event()
            await self._event.wait()
        return True


class LeanFlow(FlowControl):
    """Flow control as uvicorn's, with a lean event."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_writable_event = LeanEvent(is_set=True)  # type: ignore[assignment]


class ShortLine(list[Any]):
    """The requests that wait on one connection: a few, mostly none; the last one is the next."""

    __slots__ = ()

    def appendleft(self, waiting: Any) -> None:
        """Put a request at the end of the line."""
        self.insert(0, waiting)
