"""Slices of a round's update, made by workers (`epochal checker`), by lease.

Theory of operation. A sum that begins while workers ask for work is cut into as many slices as there are workers. Who
takes a slice adds up the round's results in the object store while they are verified, and asks for the next ones; that
renews its lease (`leases.py`). When the outcome has been decided, it delivers the slice's encoded mean. With a lease
that ends goes all that its worker has added: another one makes the slice anew, or whoever puts the update together. Its
bytes are the same, and the first ones count.

A worker whose bytes break a rule of their codec gets no other slice. If the outcome has other results than were added,
another sum begins: all leases of the one before are over.
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from epochal.coordinator.blobs import leases
from epochal.coordinator.blobs.leases import PRESENT_FOR_S, Lease, Leases, Work
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.worker_thread import Worker
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import Refused, SpoolFull
from epochal.state.messages.slice_messages import MAX_RESULTS, LeasedSlice, SliceResult
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.slices import Slice, rule_broken_by, slices_of
from epochal.state.updates import Weight
from epochal.state.wire import ClientId, Sha256

log = logging.getLogger(__name__)

FREE_FOR_S = 2.0
"""Time within which a worker must take a slice of which all results are known."""
MAX_WORKERS = 1024
"""Maximum number of workers present, and of those that are refused."""

StoredAt = Callable[[Sha256], Awaitable[tuple[str, int] | None]]
"""Returns a URL where a blob can be read, and its size in bytes; None if it is not in an object store."""


@dataclass(frozen=True, slots=True)
class AddedResult:
    """A result in a sum."""

    client_id: ClientId
    sha256: Sha256
    weight: Weight


@dataclass(slots=True, kw_only=True, eq=False)
class SharedSlice(Work):
    """A slice of a sum.

    Attributes:
        layout: of its tensors.
        made: its encoded mean.
    """

    slice: Slice
    layout: TensorLayout
    made: SpoolFile | None = None


@dataclass(slots=True)
class SharedSum:
    """A sum that is made in slices.

    Attributes:
        step: that the update takes.
        spool: where delivered slices are kept.
        results: those to be added, in this order.
        whole_since_s: since when no other result follows; infinite before.
        changed: notified when any of this changes.
    """

    step: int
    merge: MergeConfig
    spool: Spool
    slices: tuple[SharedSlice, ...]
    results: list[AddedResult] = field(default_factory=list)
    whole_since_s: float = math.inf
    changed: Broadcast = field(default_factory=Broadcast)

    def add(self, result: AddedResult) -> None:
        """Let each worker add another result."""
        self.results.append(result)
        self.changed.notify()


class LeasedSlices:
    """The slices of one coordinator's update.

    Args:
        now_s: seconds on the run's clock.
        stored_at: where workers read results.
        checking: checks delivered slices.

    Attributes:
        came: notified when another worker is present.
    """

    def __init__(self, now_s: Callable[[], float], stored_at: StoredAt, checking: Worker) -> None:
        self._now_s = now_s
        self._stored_at = stored_at
        self._checking = checking
        self._sum: SharedSum | None = None
        self._leases = Leases("slice", now_s, lambda: () if self._sum is None else self._sum.slices)
        self.came = Broadcast()
        self._heard: dict[str, float] = {}
        self._refused: deque[str] = deque(maxlen=MAX_WORKERS)

    @property
    def worker_count(self) -> int:
        """Number of workers present."""
        now_s = self._now_s()
        for worker, heard_s in list(self._heard.items()):
            if now_s > heard_s + PRESENT_FOR_S:
                del self._heard[worker]
        return len(self._heard)

    # Whoever puts the update together

    def begin(self, step: int, merge: MergeConfig, layout: TensorLayout, spool: Spool) -> SharedSum | None:
        """Return a new sum of no results, in place of the one before; None if no worker is present."""
        self.end()
        count = self.worker_count
        if not count:
            return None
        now_s = self._now_s()
        slices = tuple(
            SharedSlice(slice=found, layout=found.of(layout), free_since_s=now_s) for found in slices_of(layout, count)
        )
        self._sum = SharedSum(step, merge, spool, slices)
        self._leases.offer()
        return self._sum

    def end(self) -> None:
        """Give up the sum under way: its leases are over."""
        if self._sum is not None:
            self._sum.changed.notify()
        self._sum = None

    async def made(self, total: SharedSum, part: SharedSlice) -> SpoolFile | None:
        """Return a slice's encoded mean, once a worker has delivered it; None if the caller is to make it.

        No result may be added to the sum any more.
        """
        if total.whole_since_s == math.inf:
            total.whole_since_s = self._now_s()
            for each in total.slices:
                each.free_since_s = total.whole_since_s
            total.changed.notify()
        if not await self._leases.is_done(part, FREE_FOR_S):
            part.end()
        return part.made

    def refuse(self, total: SharedSum, part: SharedSlice) -> None:
        """Give no other slice to the worker that has delivered this one, because it is wrong."""
        if part.lease is not None:
            self._refuse(part.lease.worker, total.step, "probe")

    def _refuse(self, worker: str, step: int, rule: str) -> None:
        log.error("slice_refused", extra={"worker": worker, "step": step, "rule": rule})
        self._refused.append(worker)
        self._heard.pop(worker, None)

    # Requests of workers

    async def lease(self, worker: str, wait_s: float) -> LeasedSlice | None:
        """Return a slice, leased; None if there is none within `wait_s`.

        Args:
            worker: names the process.
            wait_s: seconds.

        Raises:
            Refused: `forbidden` if its bytes were wrong; `overloaded` beyond `MAX_WORKERS`.
        """
        part = await self._leases.taken(worker, wait_s, partial(self._hear, worker))
        if part is None or part.lease is None or self._sum is None:
            return None
        return await self._leased(self._sum, part, part.lease, 0)

    async def renew(self, name: str, added_count: int, wait_s: float) -> LeasedSlice:
        """Renew a lease, and return the results that follow those that the worker has added.

        Args:
            name: of the lease, which only its worker knows.
            added_count: number of results that the worker has added.
            wait_s: seconds to wait for another result, or for the end of the sum.

        Raises:
            Refused: `gone`, if the lease is over, or has lasted for too long.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + min(wait_s, leases.LEASE_S / 3)
        while True:
            total, part, lease = self._held(name)
            encoded = codec_named(total.merge.codec_name).encoded(part.layout)
            since_s = min(max(lease.since_s, total.whole_since_s), self._now_s())
            self._leases.renew(part, lease, since_s, encoded.size_bytes * len(total.results))
            changed = total.changed.next
            if added_count < len(total.results) or total.whole_since_s < math.inf or loop.time() >= end_s:
                return await self._leased(total, part, lease, added_count)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await changed.wait()

    async def deliver(self, name: str, size_bytes: int | None, body: AsyncIterator[bytes]) -> None:
        """Take the encoded mean of a slice. One that was made meanwhile is not replaced.

        Args:
            name: of the lease.
            size_bytes: number of the bytes, as announced.
            body: the bytes.

        Raises:
            Refused: `gone`, if the lease is over; `not-now`, while results may follow; `result-invalid`, if the bytes
                cannot be the slice; `blobs-full`, if there is no room for them; as `body` raises.
        """
        total, part, lease = self._held(name)
        if total.whole_since_s == math.inf:
            raise Refused(Refusal.NOT_NOW, "other results may follow; ask for them")
        codec = codec_named(total.merge.update_codec)
        wanted_bytes = codec.encoded(part.layout).size_bytes
        rule: str | None = "size"
        if size_bytes == wanted_bytes:
            file = total.spool.file()
            try:
                file.reserve(wanted_bytes)
                async for piece in body:
                    file.append(piece)
            except SpoolFull as error:
                raise Refused(Refusal.BLOBS_FULL, error.message) from error
            if file.size_bytes != wanted_bytes:
                raise Refused(Refusal.BODY_INCOMPLETE, f"{file.size_bytes} of {wanted_bytes} bytes arrived")
            rule = await self._checking.run(partial(rule_broken_by, file, part.layout, codec))
        if rule is not None:
            self._refuse(lease.worker, total.step, rule)
            self._leases.give_back(part, lease)
            raise Refused(Refusal.RESULT_INVALID, f"the slice breaks rule {rule!r}: {wanted_bytes} bytes are needed")
        if not part.is_done:
            part.made, part.lease = file, lease
            part.end()

    def give_back(self, name: str) -> None:
        """End a lease without the slice. Raise `Refused(Refusal.GONE)` if it is over."""
        _, part, lease = self._held(name)
        self._leases.give_back(part, lease)

    def _hear(self, worker: str) -> None:
        if worker in self._refused:
            raise Refused(Refusal.FORBIDDEN, "a slice of this process was wrong; it gets no other")
        is_new = worker not in self._heard
        if is_new and self.worker_count >= MAX_WORKERS:
            raise Refused(Refusal.OVERLOADED, f"{MAX_WORKERS} workers are present already")
        self._heard[worker] = self._now_s()
        if is_new:
            self.came.notify()

    def _held(self, name: str) -> tuple[SharedSum, SharedSlice, Lease]:
        """Return a slice and its lease. Raise `Refused(Refusal.GONE)` if that is over."""
        part, lease = self._leases.held(name)
        self._hear(lease.worker)
        assert self._sum is not None, "it holds the slices"
        return self._sum, part, lease

    async def _leased(self, total: SharedSum, part: SharedSlice, lease: Lease, start: int) -> LeasedSlice:
        results = []
        for result in total.results[start : start + MAX_RESULTS]:
            place = await self._stored_at(result.sha256)
            if place is None:
                self._leases.give_back(part, lease)
                raise Refused(Refusal.GONE, f"result {result.sha256} is not in the object store")
            weight = result.weight
            results.append(SliceResult(result.sha256, place[1], weight.batch_count, weight.factor, place[0]))
        merge, number = total.merge, part.slice
        return LeasedSlice(
            lease.name,
            leases.LEASE_S,
            total.step,
            number.first,
            number.stop,
            merge.codec_name,
            merge.update_codec,
            merge.mean,
            tuple(results),
            total.whole_since_s < math.inf and start + len(results) >= len(total.results),
        )
