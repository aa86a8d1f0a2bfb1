"""Looks at blobs in an object store that a reader did not find, or found with other bytes than theirs.

A store says at once whether an object is there and how large it is. Whether its bytes are still the blob's is found
out by reading it, once for each version of it; many readers that ask about one blob wait for the same read.
"""

import asyncio
from functools import partial

from coordinator.store.blobs import BlobStore
from state.errors import Refused
from state.refusals import Refusal
from state.wire import Sha256

MAX_READS_WAITING = 64
"""Maximum number of blobs that are read, or wait for it, because of readers that found other bytes."""
MAX_READS = 1
"""Number of blobs that are read at a time for this."""
READ_WAIT_S = 30.0
"""Maximum time after which a request is answered for which a blob is read; a client waits for 60 s."""


class ObjectLooks:
    """The looks of one service at its blobs.

    Args:
        blobs: are in an object store, or some are.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._reading: dict[Sha256, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_READS)

    async def find(self, sha256: Sha256) -> None:
        """Look whether a held blob is there. Raises as `BlobStore.look`."""
        await self._blobs.look(sha256, reads=False)

    async def compare(self, sha256: Sha256) -> None:
        """Look whether a held blob is there, with its own bytes.

        Raises:
            Refused: as `BlobStore.look`; `overloaded` while it is read, or too many others are.
        """
        task = self._reading.get(sha256)
        if task is None:
            if len(self._reading) >= MAX_READS_WAITING:
                raise Refused(Refusal.OVERLOADED, f"{MAX_READS_WAITING} blobs are compared already; try again soon")
            task = asyncio.get_running_loop().create_task(self._read(sha256))
            self._reading[sha256] = task
            task.add_done_callback(partial(self._ended, sha256))
        done, _ = await asyncio.wait({task}, timeout=READ_WAIT_S)
        if not done:
            raise Refused(Refusal.OVERLOADED, f"blob {sha256} is read once more, to compare its bytes; try again soon")
        task.result()

    async def aclose(self) -> None:
        """Give up what is under way."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _read(self, sha256: Sha256) -> None:
        async with self._slots:
            await self._blobs.look(sha256, reads=True)

    def _ended(self, sha256: Sha256, task: asyncio.Task[None]) -> None:
        del self._reading[sha256]
        if not task.cancelled():
            task.exception()  # whoever waits for it raises it; there may be nobody
