"""Background work: keeping `state.toml` up to date, and deleting blobs that the run no longer needs."""

import asyncio
import logging
from collections.abc import Callable

from coordinator.machine.run import Run
from coordinator.machine.views import blobs_needed
from coordinator.store.open import Store
from state.config.state_file import Progress, dump_state
from state.errors import StoreBlocked, StoreFailed

log = logging.getLogger(__name__)


class Maintenance:
    """Keeps the state file and the blobs of one service in order.

    Args:
        run_now: returns the run as it is kept at the moment.
        fail: called when the store fails.
    """

    def __init__(self, store: Store, run_now: Callable[[], Run], fail: Callable[[StoreFailed], None]) -> None:
        self._store = store
        self._run_now = run_now
        self._fail = fail
        self._due = asyncio.Event()
        self._state_file_stale = False
        self._sweep_due = False

    def state_file_changed(self) -> None:
        """Have the kept `state.toml` written anew."""
        self._state_file_stale = True
        self._due.set()

    def sweep(self) -> None:
        """Have unneeded blobs deleted."""
        self._sweep_due = True
        self._due.set()

    def repeat(self) -> None:
        """Have done what a blocked store has prevented."""
        self._due.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.save_state_file()
                if self._sweep_due:
                    await self._sweep_blobs()
                    self._sweep_due = False
            except StoreFailed as error:
                self._fail(error)

    async def save_state_file(self) -> None:
        """Bring the kept `state.toml` up to date, if it is not.

        Raises:
            StoreFailed: it could not be written.
        """
        if self._state_file_stale:
            self._state_file_stale = False
            run = self._run_now()
            progress = Progress(epoch=run.epoch, step=run.step, epoch_start_data_index=run.epoch_start_data_index)
            try:
                await self._store.save_state_file(dump_state(run.state_file.with_progress(run.phase, progress)))
            except StoreBlocked:
                self._state_file_stale = True
                raise

    async def _sweep_blobs(self) -> None:
        unneeded = await self._store.blobs.held() - blobs_needed(self._run_now())
        for sha256 in unneeded:
            if sha256 not in blobs_needed(self._run_now()):
                await self._store.blobs.delete(sha256)
        if unneeded:
            log.info("blobs_swept", extra={"count": len(unneeded)})
