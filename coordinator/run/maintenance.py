"""Background work: keeping `state.toml` up to date, deleting blobs that the run no longer needs, and making room.

Room is made in one way, whoever needs it: by a sweep that is due, then by ending uploads that wait for their rest, the
oldest first, and only where that suffices.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import blobs_needed, state_file_text
from epochal.coordinator.store.store import Store
from epochal.runtime.broadcast import Broadcast
from epochal.state.errors import StoreBlocked, StoreConflict, StoreFailed
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

BLOBS_NEAR_BOUND_PERCENT = 80
MAX_SWEEP_DELAY_S = 3600.0
"""Maximum time that a sweep waits for those who copy the run. It does not wait where blobs are near their bound."""
SWEEP_RETRY_S = 1.0
STATE_FILE_S = 1.0
"""Maximum time for which `state.toml` is behind a round: each writing of it takes longer than a record of the journal,
which waits for it, and rounds may be shorter."""
MAX_DROP_CONFLICTS = 100
"""Number of times in one sweep that another coordinator may append first; the next sweep deletes what is left."""
DropBlobs = Callable[[frozenset[Sha256]], Awaitable[frozenset[Sha256]]]
"""Deletes some of these blobs, which the run does not need; returns which. Raises `StoreConflict` if it has changed."""
MAX_ROOM_WAIT_S = 30.0
"""Maximum time that an upload waits for a sweep that makes room for it."""


def blobs_bound(run: Run) -> int:
    """Return the size of all blobs at which room must be made."""
    return run.state_file.blobs.max_total_bytes * BLOBS_NEAR_BOUND_PERCENT // 100


class PausedUploads(Protocol):
    """Uploads that wait for their rest, and may be given up."""

    @property
    def paused_count(self) -> int:
        """Number of them."""
        ...

    @property
    def paused_bytes(self) -> int:
        """Bytes that have arrived of them."""
        ...

    async def end_oldest(self) -> None:
        """End the one that has waited the longest; return when its bytes are given up, or after a bounded time."""
        ...


async def _know_all() -> None: ...


async def _drop_none(_: frozenset[Sha256]) -> frozenset[Sha256]:
    return frozenset()


class Maintenance:
    """Keeps the state file and the blobs of one service in order.

    Args:
        run_now: returns the run as it is kept at the moment.
        fail: called when the store fails.
        catch_up: reads what other coordinators of the run have kept.
        drop_blobs: deletes blobs that are kept with records.

    Attributes:
        paused: uploads that may be given up; None until there may be some.
    """

    def __init__(
        self,
        store: Store,
        run_now: Callable[[], Run],
        fail: Callable[[StoreFailed], None],
        catch_up: Callable[[], Awaitable[object]] = _know_all,
        drop_blobs: DropBlobs = _drop_none,
    ) -> None:
        self._store = store
        self._run_now = run_now
        self._fail = fail
        self._catch_up = catch_up
        self._drop_blobs = drop_blobs
        self.paused: PausedUploads | None = None
        self._due = asyncio.Event()
        self._state_file_stale = False
        self._state_file_timer: asyncio.TimerHandle | None = None
        self._sweep_since_s: float | None = None
        """Since when a sweep is due or under way, on the event loop's clock."""
        self._sweeps_asked = 0
        """Number of sweeps that were asked for; one that is asked for during another follows it."""
        self._is_room_wanted = False
        """Whether somebody found no room: a sweep does not wait for who copies the run."""
        self._swept = Broadcast()
        self._taken_in: Counter[Sha256] = Counter()
        """Blobs that are kept, and about which nothing is in the journal yet."""
        self._is_put_off = False
        """Whether the sweep waits for somebody who copies the run."""

    @contextlib.contextmanager
    def taking_in(self, sha256: Sha256) -> Iterator[None]:
        """Keep a blob from being deleted as unneeded until the context is left."""
        self._taken_in[sha256] += 1
        try:
            yield
        finally:
            self._taken_in[sha256] -= 1
            if not self._taken_in[sha256]:
                del self._taken_in[sha256]

    async def drop_unless_needed(self, sha256: Sha256, run: Run) -> None:
        """Delete refused bytes unless the run needs them, or they are being taken in.

        So a copied digest does not cost another client its blob.
        """
        if sha256 not in self._taken_in and sha256 not in blobs_needed(run):
            await self._store.blobs.delete(sha256)

    def state_file_changed(self) -> None:
        """Have the kept `state.toml` written anew, now."""
        self._state_file_stale = True
        self._due.set()

    def phase_changed(self, before: RunState, after: RunState) -> None:
        """Have the kept `state.toml` written anew: now, or between the phases of rounds once in a short while."""
        if not (before in ROUND_PHASES and after in ROUND_PHASES):
            self.state_file_changed()
            return
        self._state_file_stale = True
        if self._state_file_timer is None:
            self._state_file_timer = asyncio.get_running_loop().call_later(STATE_FILE_S, self._state_file_is_due)

    def _state_file_is_due(self) -> None:
        self._state_file_timer = None
        self._due.set()

    def sweep(self) -> None:
        """Have unneeded blobs deleted."""
        self._sweeps_asked += 1
        if self._sweep_since_s is None:
            self._sweep_since_s = asyncio.get_running_loop().time()
        self._due.set()

    def makes_room(self) -> bool:
        """Return whether a sweep is due or under way; it is hurried. Until its end unneeded blobs take room."""
        if self._sweep_since_s is None:
            return False
        self._is_room_wanted = True
        self._due.set()
        return True

    async def make_room(self, size_bytes: int, most_bytes: int | None = None) -> bool:
        """Make room for so many bytes more, and return whether there is.

        Args:
            size_bytes: what else all blobs will need.
            most_bytes: what they may need; None for `max_total_bytes`.
        """
        most = self._run_now().state_file.blobs.max_total_bytes if most_bytes is None else most_bytes

        def lacking_bytes() -> int:
            return self._store.blobs.total_bytes + size_bytes - most

        if lacking_bytes() <= 0:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_ROOM_WAIT_S):
                while lacking_bytes() > 0 and self.makes_room():
                    await self._swept.wait()
        if self.paused is not None and self.paused.paused_bytes >= lacking_bytes():
            while lacking_bytes() > 0 and self.paused.paused_count:
                await self.paused.end_oldest()
        return lacking_bytes() <= 0

    async def with_room(self, body: AsyncIterator[bytes], size_bytes: int, spare_bytes: int) -> AsyncIterator[bytes]:
        """Yield a blob's pieces. Where one finds no room, make some for all that follow.

        Args:
            body: the pieces.
            size_bytes: of the blob.
            spare_bytes: what must stay free beside it.
        """
        remaining_bytes = size_bytes
        async for piece in body:
            free_bytes = self._run_now().state_file.blobs.max_total_bytes - self._store.blobs.total_bytes
            if free_bytes < len(piece) + spare_bytes:
                await self.make_room(remaining_bytes + spare_bytes)
            remaining_bytes -= len(piece)
            yield piece

    async def stays_below_bound(self) -> bool:
        """Return whether blobs are below the part of their bound at which an epoch ends, or will be after a sweep."""
        run = self._run_now()
        if self._store.blobs.total_bytes <= blobs_bound(run) or self.makes_room():
            return True
        if run.models.blobs_near_bound or run.clock.phase is RunState.COOLDOWN:
            return False  # the epoch ends anyway, and its checkpoint may be what waits for its rest
        return await self.make_room(0, blobs_bound(run))

    async def make_room_on_disk(self) -> None:
        """Free some of a full disk: by a sweep that is due, or by one upload that waits for its rest."""
        if not self.makes_room() and self.paused is not None and self.paused.paused_count:
            await self.paused.end_oldest()

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
            for work in (self.save_state_file, self._sweep_if_due):  # on a full disk, a sweep can still be done
                try:
                    await work()
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
                await self._store.place.save_state_file(state_file_text(self._run_now()))
            except StoreBlocked:
                self._state_file_stale = True
                raise

    async def _sweep_if_due(self) -> None:
        if self._sweep_since_s is not None:
            await self._sweep_or_wait(self._sweep_since_s)

    async def _sweep_or_wait(self, since_s: float) -> None:
        """Delete unneeded blobs, unless somebody copies the run and there is time and room to wait."""
        async with self._store.place.sweeping() as is_allowed:
            if not is_allowed:
                waited_s = asyncio.get_running_loop().time() - since_s
                near_bound = self._store.blobs.total_bytes > blobs_bound(self._run_now())
                has_room = not (near_bound or self._is_room_wanted)
                self._is_put_off = has_room and waited_s < MAX_SWEEP_DELAY_S
                if self._is_put_off:
                    return
                log.warning("sweep_during_copy", extra={"waited_s": round(waited_s), "has_room": has_room})
            asked, self._is_put_off, self._is_room_wanted = self._sweeps_asked, False, False
            await self._sweep_blobs()
        if self._sweeps_asked > asked:
            self._sweep_since_s = asyncio.get_running_loop().time()
            self._due.set()
        else:
            self._sweep_since_s = None
            self._swept.notify()

    async def _sweep_blobs(self) -> None:
        await self._store.blobs.drop_unfinished()
        recorded = await self._sweep_recorded_blobs()
        held = await self._store.blobs.held() - recorded
        await self._catch_up()  # whatever is held was announced before, perhaps to another coordinator
        needed_by = self._run_now()
        needed = blobs_needed(needed_by)
        unneeded = held - needed
        for sha256 in unneeded:
            run = self._run_now()
            if run is not needed_by:
                needed_by, needed = run, blobs_needed(run)
            if sha256 not in needed and sha256 not in self._taken_in:
                await self._store.blobs.delete(sha256)
                self._swept.notify()
        if unneeded:
            await self._store.blobs.recount()
            log.info("blobs_swept", extra={"count": len(unneeded)})

    async def _sweep_recorded_blobs(self) -> frozenset[Sha256]:
        """Delete unneeded blobs that are kept with records; return which of those are left, or were there."""
        listed = held = await self._store.recorded_blobs.held()
        conflicts = 0
        while held and conflicts < MAX_DROP_CONFLICTS:
            await self._catch_up()
            try:
                dropped = await self._drop_blobs(held)
            except StoreConflict:
                conflicts += 1
            else:
                if not dropped:
                    break
                held -= dropped
                self._swept.notify()
        if len(held) < len(listed):
            log.info("recorded_blobs_swept", extra={"count": len(listed) - len(held), "conflicts": conflicts})
        return listed
