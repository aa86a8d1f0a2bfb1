"""Work that nobody waits for: keeping `state.toml` up to date, and forgetting blobs that the run no longer needs."""

import asyncio
import logging
from collections.abc import Callable

from coordinator.machine.run import Run
from coordinator.machine.views import blobs_needed
from coordinator.store.open import Store
from state.config.state_file import Progress, StateFile, dump_state
from state.errors import StoreFailed

log = logging.getLogger(__name__)


class Maintenance:
    """Keeps the state file and the blobs of one service in order.

    Args:
        run_now: the run as it is kept at the moment of the call.
        fail: told when the store fails.
    """

    def __init__(self, store: Store, run_now: Callable[[], Run], fail: Callable[[StoreFailed], None]) -> None:
        self._store = store
        self._run_now = run_now
        self._fail = fail
        self._due = asyncio.Event()
        self._state_file_stale = False
        self._sweep_due = False

    def state_file_changed(self) -> None:
        """Note that the kept `state.toml` is out of date."""
        self._state_file_stale = True
        self._due.set()

    def sweep(self) -> None:
        """Note that blobs have become unneeded."""
        self._sweep_due = True
        self._due.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.save_state_file()
                if self._sweep_due:
                    self._sweep_due = False
                    await self._sweep_blobs()
            except StoreFailed as error:
                self._fail(error)

    async def save_state_file(self) -> None:
        """Bring the kept `state.toml` up to date, if it is not.

        Raises:
            StoreFailed: it could not be written.
        """
        if self._state_file_stale:
            self._state_file_stale = False
            await self._store.save_state_file(dump_state(_state_file_of(self._run_now())))

    async def _sweep_blobs(self) -> None:
        unneeded = await self._store.blobs.held() - blobs_needed(self._run_now())
        for sha256 in unneeded:
            if sha256 not in blobs_needed(self._run_now()):
                await self._store.blobs.delete(sha256)
        if unneeded:
            log.info("blobs_swept", extra={"count": len(unneeded)})


def _state_file_of(run: Run) -> StateFile:
    progress = Progress(epoch=run.epoch, step=run.step, epoch_start_data_index=run.epoch_start_data_index)
    return run.state_file.with_progress(run.phase, progress)
