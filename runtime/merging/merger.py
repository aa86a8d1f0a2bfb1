"""Sums, updates and outer steps (`state/updates.py`, `state/merging.py`), in a thread whose arithmetic was tested.

A sum and a new replica may lie in files of the spool, the replica in the format of a checkpoint: then memory grows
neither with the model nor with the number of results. The rule kept here: nothing is computed in a thread that has not
just shown that it keeps denormals, because a library can switch them off for every thread started after it was loaded,
and the replica would differ without an error.
"""

import contextlib
import logging
import mmap
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Self, TypeAlias, TypeVar

from epochal.runtime.files.spool import DROPS_PAGES, Spool, SpoolFile
from epochal.runtime.merging.arrival import Arrival
from epochal.runtime.merging.replica_pass import Piece, ReplicaPass, at_once
from epochal.runtime.merging.room_for_sums import room_for_sums
from epochal.runtime.side_by_side import core_count, side_by_side
from epochal.runtime.worker_thread import Worker, WorkerThread
from epochal.state.codecs.codec import Block, PartMap
from epochal.state.codecs.compiled import compiled, load
from epochal.state.config.state_file import MergeConfig
from epochal.state.merging import (
    Merge,
    MergeOutput,
    OuterStep,
    Stretch,
    UnsoundArithmetic,
    merge,
    probe_bits,
    verify_arithmetic,
)
from epochal.state.model.replica import (
    CheckpointForm,
    Replica,
    arrays_in,
    blank_checkpoint,
    checkpoint_size_bound,
    replica_digest,
)
from epochal.state.model.tensors import Buffer, TensorLayout, wire_bytes
from epochal.state.results import Difference, decode_result
from epochal.state.updates import UpdateHeader, UpdatePlaces, UpdateRule, UpdateSum, Weight, decode_update, update_of
from epochal.state.wire import Blake3

log = logging.getLogger(__name__)

_T = TypeVar("_T")

MERGED_IN_MEMORY_BYTES = 1024 * 1024
"""A replica whose checkpoint is no larger is merged in memory, in the caller's thread: a file takes longer to make than
that to write, and another thread longer to wake."""
INLINE_BYTES = 64 * 1024
"""Results that are added in the caller's thread."""
MERGING_THREADS = 8
"""Maximum number of threads that write a large replica; each has up to 20 MB of files in memory."""
COMPILED_FROM_BYTES = 32 * 1024 * 1024
"""Size of the parameters from which loops are compiled, which takes longer than a small model's whole run saves."""
CALLS_PER_DROP = 16
"""Pieces of at most 4 MiB of each file that are read between two times that their pages are given back."""


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """A replica and its digest.

    Attributes:
        file: the checkpoint file that holds its values, as everybody would write it; None without one.
    """

    replica: Replica
    digest: Blake3
    file: SpoolFile | None = None

    @property
    def step(self) -> int:
        """How many outcomes it includes."""
        return self.replica.step


MergeAt: TypeAlias = Callable[[int], MergeConfig]
"""Returns how a run merges in a step."""


class Merger:
    """Makes and applies the updates of one run.

    Args:
        merge: how the run merges, or what returns it for a step, where that changes.
        spool: where sums, updates and new replicas are written.
        worker: a `WorkerThread` of its own; `InlineWorker` in virtual time. Closed by `aclose`.
        hasher: computes digests; another thread, so that a new replica is hashed while it is written. Closed too.
        beside: more threads, in which large replicas are written beside `worker`. Closed too.
    """

    def __init__(
        self,
        merge: MergeConfig | MergeAt,
        spool: Spool,
        worker: Worker,
        hasher: Worker | None = None,
        beside: Sequence[Worker] = (),
    ) -> None:
        self._merge_at = (lambda _: merge) if isinstance(merge, MergeConfig) else merge
        self._spool = spool
        self._worker = worker
        self._hasher = worker if hasher is None else hasher
        self._lanes = (worker, *beside)
        self._has_tried_loops = False

    @classmethod
    def with_threads(cls, merge: MergeConfig | MergeAt, spool: Spool, new_worker: Callable[[str], Worker]) -> Self:
        """Return a merger with workers of its own, so many that large replicas are written by all cores, or by some."""
        beside = [new_worker(f"epochal-merge-{number}") for number in range(2, min(MERGING_THREADS, core_count()) + 1)]
        return cls(merge, spool, new_worker("epochal-merge"), new_worker("epochal-digest"), beside)

    async def verify(self) -> None:
        """Check that this process may merge. Call it before the first merge.

        Raises:
            UnsoundArithmetic: the merging thread does not compute IEEE float32; the machine's fault, do not retry.
        """
        await self._worker.run(verify_arithmetic)

    def rule(self, step: int) -> UpdateRule:
        """Return how the update of a step is made."""
        return UpdateRule.of(self._merge_at(step))

    async def new_sum(self, step: int, layout: TensorLayout) -> UpdateSum:
        """Return a sum of no results of a step. Raises `SpoolFull`."""
        await self._load_loops(layout)
        make = partial(room_for_sums, self._spool, layout, self.rule(step).mean)
        return make() if layout.size_bytes <= MERGED_IN_MEMORY_BYTES else await self._worker.run(make)

    async def add(self, total: UpdateSum, results: Sequence[tuple[Weight, Buffer]], layout: TensorLayout) -> None:
        """Add results, which were checked, in this order to a sum of the model, or of a slice of it.

        Raises:
            UnsoundArithmetic: as `verify`.
            InternalError, InvalidResult: it does not fit; the caller's bug.
        """

        over: PartMap = side_by_side if total.layout.size_bytes >= COMPILED_FROM_BYTES else map

        def work() -> None:
            for weight, result in results:
                found = decode_result(result, layout)[1]
                own = {name: found[name] for name, _ in total.layout.entries}
                total.add(weight, own, self._dropping(result), over)

        is_little = sum(len(result) for _, result in results) <= INLINE_BYTES
        await (self._soon(work) if is_little else self._worker.run(partial(_checked, work)))

    async def made(
        self, total: UpdateSum, header: UpdateHeader, start: Replica, arrival: Arrival | None = None
    ) -> tuple[SpoolFile, HeldReplica]:
        """Return the file of the update that a sum makes, and the replica after it, in one pass.

        Args:
            total: the sum.
            header: of the update.
            start: the replica before it.
            arrival: learns how much of the file is written.

        Raises:
            Diverged: the mean, or the replica, is not finite; the same for whoever makes it.
            SpoolFull: the update or the replica finds no room.
            UnsoundArithmetic: as `verify`.
        """
        layout, codec, arrival = start.layout, header.codec, arrival or Arrival()
        if _is_small(start):
            stream = update_of(header, layout, partial(total.encoded, codec))
            file = await self._soon(partial(self._spool.keep, stream.views(), stream.size_bytes))
            arrival.advance(file, len(file), len(file))
            return file, await self.applied(start, decode_update(file.view(), header, layout))
        places = UpdatePlaces(header, layout)
        file, size_bytes = self._spool.file(), places.size_bytes
        room = await self._worker.run(partial(file.prepared, size_bytes))
        room[: len(places.beginning)] = places.beginning
        arrival.advance(file, len(places.beginning), size_bytes)

        def encode(stretch: Stretch) -> None:
            place = places.of(stretch).start
            for block in total.encoded_stretch(codec, stretch):
                data = wire_bytes(block, places.dtype)
                room[place : place + len(data)] = data
                place += len(data)

        def written(piece: Piece) -> None:
            arrival.advance(file, places.of(piece[-1]).stop, size_bytes)

        update = decode_update(file.view(), header, layout)
        return file, await self._written(start, update, encode=encode, written=written)

    async def joined(
        self, slices: Sequence[Callable[[], Iterable[Block]]], header: UpdateHeader, start: Replica, arrival: Arrival
    ) -> tuple[SpoolFile, HeldReplica]:
        """Return the file of the update whose blocks these functions return, one after the other, and its replica.

        Args:
            slices: of the model, in its order.
            header, start, arrival: as `made` takes them.

        Raises: as `made`.
        """
        stream = update_of(header, start.layout, lambda: chain.from_iterable(blocks() for blocks in slices))
        file = await self._worker.run(lambda: _checked(partial(self._spool.keep, stream.views(), stream.size_bytes)))
        arrival.advance(file, stream.size_bytes, stream.size_bytes)
        return file, await self.applied(start, decode_update(file.view(), header, start.layout))

    async def applied(self, start: Replica, update: Difference, outer: OuterStep | None = None) -> HeldReplica:
        """Return the replica after an update, in a file of the spool unless it is small.

        Args:
            start, update: as `Merge` takes them.
            outer: the outer step; None for the run's.

        Raises:
            Diverged: the new values are not finite; the same on every replica.
            SpoolFull: the new replica finds no room.
            UnsoundArithmetic: as `verify`.
            InternalError: an update that does not fit; the caller's bug.
        """
        if _is_small(start):
            replica = await self._soon(partial(merge, start, update, outer or self._outer(start)))
            return HeldReplica(replica, replica_digest(replica))
        return await self._written(start, update, outer=outer)

    async def eager_start(self, start: Replica, result: Buffer) -> Replica:
        """Return the outer step that one result alone makes of a replica: where its client trains on (`merge.delay`).

        Its bits are the same for whoever has the result. It is in a file unless it is small.

        Args:
            start: the replica from which the result's round began.
            result: its bytes, which were checked.

        Raises:
            Diverged: the new values are not finite.
            SpoolFull: they find no room.
            UnsoundArithmetic: as `verify`.
        """
        update = decode_result(result, start.layout)[1]
        return (await self.applied(start, update, self._outer(start).of_own())).replica

    async def applied_on_arrival(self, start: Replica, arrival: Arrival, header: UpdateHeader) -> HeldReplica:
        """Return the replica after an update, which is applied piece by piece while its file arrives.

        Raises:
            InvalidDocument: as `decode_update`.
            Diverged, SpoolFull, UnsoundArithmetic: as `applied`.
        """
        if _is_small(start):
            file = await arrival.first(sys.maxsize)
            return await self.applied(start, decode_update(file.view(), header, start.layout))
        places = UpdatePlaces(header, start.layout)
        file = await arrival.first(len(places.beginning))
        if file[: len(places.beginning)] != places.beginning:
            await arrival.first(len(file))  # one with another header may still be read as this update
        update = decode_update(file.view(), header, start.layout)

        async def ready(piece: Piece) -> None:
            await arrival.first(places.of(piece[-1]).stop)

        return await self._written(start, update, ready)

    async def aclose(self) -> None:
        """End the threads; bounded."""
        for worker in (*self._lanes, self._hasher):
            await worker.aclose()

    async def _written(
        self,
        start: Replica,
        update: Difference,
        ready: Callable[[Piece], Awaitable[None]] = at_once,
        encode: Callable[[Stretch], None] = lambda _: None,
        written: Callable[[Piece], None] = lambda _: None,
        outer: OuterStep | None = None,
    ) -> HeldReplica:
        """Return the replica after an update, written to a file; `encode` writes a stretch before it is applied."""
        await self._load_loops(start.layout)
        file, form = self._spool.file(), CheckpointForm(start.step + 1, start.layout, start.has_momentum)
        output = await self._worker.run(partial(_output, file, form))
        merging = Merge(start, update, outer or self._outer(start), output)

        def compute(piece: Piece) -> None:
            verify_arithmetic()
            for stretch in piece:
                encode(stretch)
                merging.compute(stretch)
            self._spool.drop_pages()

        steps = ReplicaPass(form, output, self._lanes, self._hasher, self._dropping())
        return HeldReplica(merging.merged(), await steps.run(compute, ready, written), file)

    async def _soon(self, work: Callable[[], _T]) -> _T:
        """Return what little work returns: done in this thread, which is awake, unless its arithmetic differs."""
        if isinstance(self._worker, WorkerThread):
            with contextlib.suppress(UnsoundArithmetic):
                verify_arithmetic()
                return work()
        return await self._worker.run(partial(_checked, work))

    def _outer(self, start: Replica) -> OuterStep:
        """Return the outer step that follows a replica."""
        return OuterStep.of(self._merge_at(start.step + 1))

    async def _load_loops(self, layout: TensorLayout) -> None:
        """Use compiled loops for a large model, if they are installed."""
        if compiled() is None and not self._has_tried_loops and layout.size_bytes >= COMPILED_FROM_BYTES:
            self._has_tried_loops = True
            is_used = await self._worker.run(partial(load, probe_bits))
            log.info("compiled_loops", extra={"is_used": is_used})

    def _dropping(self, read: Buffer = b"") -> Callable[[], None]:
        """Return what is called after each piece, and gives pages back after several: the spool's and the read ones."""
        calls = 0
        file = read.obj if isinstance(read, memoryview) else None

        def done() -> None:
            nonlocal calls
            calls += 1
            if calls % CALLS_PER_DROP == 0:
                self._spool.drop_pages()
                if isinstance(file, mmap.mmap) and DROPS_PAGES:
                    file.madvise(mmap.MADV_DONTNEED)

        return done


def _checked(work: Callable[[], _T]) -> _T:
    """Return what the work returns, done in a thread whose arithmetic was tested."""
    verify_arithmetic()
    return work()


def _is_small(replica: Replica) -> bool:
    """Return whether the next replica is merged in memory; a file's values are little-endian."""
    size_bytes = checkpoint_size_bound(replica.layout, has_momentum=replica.has_momentum)
    return size_bytes <= MERGED_IN_MEMORY_BYTES or sys.byteorder != "little"


def _output(file: SpoolFile, form: CheckpointForm) -> MergeOutput:
    """Return where a replica is written, in an empty file that becomes its checkpoint; the header is written here."""
    blank = blank_checkpoint(form)
    room = file.prepared(blank.size_bytes)
    room[: len(blank.header)] = blank.header
    return MergeOutput(*arrays_in(room[len(blank.header) :], form))
