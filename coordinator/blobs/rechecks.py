"""Looks at blobs in an object store that a reader did not find, or found with other bytes than theirs.

A store says at once whether an object is there and how large it is. Whether its bytes are still the blob's is found
out by reading it, once for each version of it. Readers that ask about one blob wait for the same look.
"""

import asyncio
from functools import partial

from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

MAX_LOOKS = 64
"""Maximum number of checks under way."""
MAX_READS = 1
"""Number of blobs that are read at a time for this."""
LOOK_WAIT_S = 30.0
"""Maximum time after which a request that waits for a check is answered; a client waits for 60 s."""


class ObjectLooks:
    """The looks of one service at its blobs.

    Args:
        blobs: are in an object store, or some are.
    """

    def __init__(self, blobs: RunBlobs) -> None:
        self._blobs = blobs
        self._looking: dict[tuple[Sha256, bool], asyncio.Task[None]] = {}
        """By blob, and whether it is read."""
        self._slots = asyncio.Semaphore(MAX_READS)

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        """Look whether a held blob is there; with `reads`, whether it has its own bytes.

        Raises:
            Refused: as `ObjectBlobs.look`; `overloaded` while that takes long, or too many others are looked at.
        """
        task = self._looking.get((sha256, reads))
        if task is None:
            if len(self._looking) >= MAX_LOOKS:
                raise Refused(Refusal.OVERLOADED, f"{MAX_LOOKS} blobs are looked at already; try again soon")
            task = asyncio.get_running_loop().create_task(self._look(sha256, reads=reads))
            self._looking[sha256, reads] = task
            task.add_done_callback(partial(self._ended, (sha256, reads)))
        done, _ = await asyncio.wait({task}, timeout=LOOK_WAIT_S)
        if not done:
            raise Refused(Refusal.OVERLOADED, f"blob {sha256} is looked at, and compared; try again soon")
        task.result()

    async def _look(self, sha256: Sha256, *, reads: bool) -> None:
        if not reads:
            await self._blobs.look(sha256, reads=False)
            return
        async with self._slots:
            await self._blobs.look(sha256, reads=True)

    async def aclose(self) -> None:
        """Give up what is under way."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, look: tuple[Sha256, bool], task: asyncio.Task[None]) -> None:
        del self._looking[look]
        if not task.cancelled():
            task.exception()  # whoever waits for it raises it; there may be nobody
