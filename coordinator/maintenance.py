"""Background work: keeping `state.toml` up to date, and deleting blobs that the run no longer needs."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from coordinator.machine.run import Run
from coordinator.machine.views import blobs_needed
from coordinator.store.open import Store
from state.config.state_file import Progress, dump_state
from state.errors import StoreBlocked, StoreFailed

log = logging.getLogger(__name__)

BLOBS_NEAR_BOUND_PERCENT = 80
MAX_SWEEP_DELAY_S = 3600.0
"""Maximum time that a sweep waits for those who copy the run. It does not wait where blobs are near their bound."""
SWEEP_RETRY_S = 1.0


def blobs_bound(run: Run) -> int:
    """Return the size of all blobs at which room must be made."""
    return run.state_file.blobs.max_total_bytes * BLOBS_NEAR_BOUND_PERCENT // 100


def state_file_text(run: Run) -> str:
    """Return the run as a `state.toml`, from which a new run can start."""
    progress = Progress(epoch=run.epoch, step=run.step, epoch_start_data_index=run.epoch_start_data_index)
    return dump_state(run.state_file.with_progress(run.phase, progress))


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
        self._sweep_since_s: float | None = None
        """Since when a sweep is due, on the event loop's clock."""
        self._is_put_off = False
        """Whether the sweep waits for somebody who copies the run."""

    def state_file_changed(self) -> None:
        """Have the kept `state.toml` written anew."""
        self._state_file_stale = True
        self._due.set()

    def sweep(self) -> None:
        """Have unneeded blobs deleted."""
        if self._sweep_since_s is None:
            self._sweep_since_s = asyncio.get_running_loop().time()
        self._due.set()

    def repeat(self) -> None:
        """Have done what a blocked store has prevented."""
        self._due.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_RETRY_S if self._is_put_off else None):
                    await self._due.wait()
            self._due.clear()
            try:
                await self.save_state_file()
                if self._sweep_since_s is not None:
                    await self._sweep_or_wait(self._sweep_since_s)
            except StoreFailed as error:
                self._fail(error)

    async def save_state_file(self) -> None:
        """Bring the kept `state.toml` up to date, if it is not.

        Raises:
            StoreFailed: it could not be written.
        """
        if self._state_file_stale:
            self._state_file_stale = False
            try:
                await self._store.save_state_file(state_file_text(self._run_now()))
            except StoreBlocked:
                self._state_file_stale = True
                raise

    async def _sweep_or_wait(self, since_s: float) -> None:
        """Delete unneeded blobs, unless somebody copies the run and there is time and room to wait."""
        with self._store.sweeping() as is_allowed:
            if not is_allowed:
                waited_s = asyncio.get_running_loop().time() - since_s
                has_room = self._store.blobs.total_bytes <= blobs_bound(self._run_now())
                self._is_put_off = has_room and waited_s < MAX_SWEEP_DELAY_S
                if self._is_put_off:
                    return
                log.warning("sweep_during_copy", extra={"waited_s": round(waited_s), "has_room": has_room})
            self._sweep_since_s, self._is_put_off = None, False
            try:
                await self._sweep_blobs()
            except StoreBlocked:
                self._sweep_since_s = since_s
                raise

    async def _sweep_blobs(self) -> None:
        unneeded = await self._store.blobs.held() - blobs_needed(self._run_now())
        for sha256 in unneeded:
            if sha256 not in blobs_needed(self._run_now()):
                await self._store.blobs.delete(sha256)
        if unneeded:
            log.info("blobs_swept", extra={"count": len(unneeded)})
