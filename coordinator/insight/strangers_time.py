"""How long the coordinator works on views of the past for strangers: one at a time, and a bounded part of the time.

Such a view takes up to some tenths of a second of a processor, and every version has others. Members and the operator
are not bounded by this.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from epochal.coordinator.run.long_polls import Reader
from epochal.runtime.connections.token_buckets import TokenBuckets
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal

PART_OF_TIME = 0.02
"""Part of the time in which views are made for strangers, on average."""
AT_ONCE_S = 3.0
"""Time that all strangers together have at once: a few dozen views."""
PART_OF_ADDRESS = 0.01
ADDRESS_AT_ONCE_S = 2.0
"""The same for one address."""
LEAST_S = 0.05
"""Time that must be there for a view to begin. One that takes longer is paid for afterwards."""
PATIENCE_S = 2.0
"""Time that a stranger waits before it is refused: refused at once, it would ask again at once."""
MAX_WAITING = 64
"""Maximum number of strangers that wait."""

_ALL = ""


class StrangersTime:
    """The time that is left for strangers, and their turns."""

    def __init__(self) -> None:
        self._all = TokenBuckets[str](AT_ONCE_S, 1 / PART_OF_TIME)
        self._addresses = TokenBuckets[str](ADDRESS_AT_ONCE_S, 1 / PART_OF_ADDRESS)
        self._turn = asyncio.Lock()
        self._waiting_count = 0

    @asynccontextmanager
    async def turn(self, stranger: Reader) -> AsyncIterator[None]:
        """Wait for a turn, and pay for the time until the context is left.

        Raises:
            Refused: `rate-limited`, if no time is left, or too many wait.
        """
        if self._waiting_count >= MAX_WAITING:
            raise _refusal(PATIENCE_S)
        self._waiting_count += 1
        try:
            wait_s = self._wait_s(stranger)
            if wait_s:
                await asyncio.sleep(min(wait_s, PATIENCE_S))
            await self._turn.acquire()
        finally:
            self._waiting_count -= 1
        try:
            wait_s = self._wait_s(stranger)
            if wait_s:
                raise _refusal(wait_s)
            began_s = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                took_s = asyncio.get_running_loop().time() - began_s
                self._all.spend(_ALL, took_s)
                self._addresses.spend(stranger.name, took_s)
        finally:
            self._turn.release()

    def _wait_s(self, stranger: Reader) -> float:
        now_s = asyncio.get_running_loop().time()
        return max(
            self._all.wait_s(_ALL, now_s, count=LEAST_S),
            self._addresses.wait_s(stranger.name, now_s, count=LEAST_S),
        )


def _refusal(wait_s: float) -> Refused:
    message = (
        f"views of the past take at most {PART_OF_TIME:.0%} of the time for those without a token; ask again later"
    )
    return Refused(Refusal.RATE_LIMITED, message, retry_after_s=wait_s)
