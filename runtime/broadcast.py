"""Telling everyone who waits that something has changed."""

import asyncio


class Broadcast:
    """Wakes every waiter at each notification; whoever waits later waits for the next one.

    No notification is missed by a caller that looks at what may have changed and then waits, with no other `await` in
    between. Where there is one, take `next` first, look, and wait for what was taken.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._is_closed = False

    @property
    def next(self) -> asyncio.Event:
        """The event that is set by the next notification."""
        return self._event

    async def wait(self) -> None:
        """Return at the next notification. Callers bound the wait."""
        await self._event.wait()

    def notify(self) -> None:
        """Wake everyone who waits."""
        self._event.set()
        if not self._is_closed:
            self._event = asyncio.Event()

    def close(self) -> None:
        """Wake everyone who waits, and let every later wait return at once."""
        self._is_closed = True
        self._event.set()
