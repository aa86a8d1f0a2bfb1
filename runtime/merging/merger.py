"""Sums, updates and outer steps (`state/updates.py`, `state/merging.py`), in a thread whose arithmetic was tested.

A sum and a new replica may lie in files of the spool, the replica in the format of a checkpoint: then memory grows
neither with the model nor with the number of results. The rule kept here: nothing is computed in a thread that has not
just shown that it keeps denormals, because a library can switch them off for every thread started after it was loaded,
and the replica would differ without an error.
"""

import asyncio
import mmap
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from epochal.runtime.files.spool import DROPS_PAGES, Spool, SpoolFile
from epochal.runtime.merging.running_sum import running_sum
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import EpochalError, InternalError
from epochal.state.merging import MergeOutput, OuterStep, merge, verify_arithmetic
from epochal.state.model.digest import HASHED_ELEMENTS, ReplicaDigest
from epochal.state.model.replica import (
    CheckpointForm,
    Replica,
    arrays_in,
    blank_checkpoint,
    checkpoint_size_bound,
    replica_digest,
)
from epochal.state.model.tensors import Buffer, TensorLayout
from epochal.state.results import Difference, decode_result
from epochal.state.updates import UpdateHeader, UpdateRule, UpdateSum, Weight, update_of
from epochal.state.wire import Blake3

MERGED_IN_MEMORY_BYTES = 1024 * 1024
"""A replica whose checkpoint is no larger is merged in memory: a file takes longer to make than that to write."""
PROGRESS_TIMEOUT_S = 600.0
"""Maximum time to wait for the next chunk of a replica that is written."""
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


class MergeProgress:
    """The number of values of a replica's parameters, in their order, that are written; two threads share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_over = False

    def advance(self, count: int) -> None:
        """Note that so many more are written, with the outer momentum of each."""
        with self._changed:
            self._count += count
            self._changed.notify()

    def end(self) -> None:
        """Note that no more are written."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def wait_for(self, count: int) -> bool:
        """Return whether so many are written, as soon as that is known.

        Raises:
            InternalError: nothing is heard of the other thread.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count or self._is_over, PROGRESS_TIMEOUT_S):
                raise InternalError(f"{self._count} values were merged, and no more in {PROGRESS_TIMEOUT_S:g} s")
            return self._count >= count


class Merger:
    """Makes and applies the updates of one run.

    Args:
        merge: how the run merges.
        spool: where sums, updates and new replicas are written.
        worker: a `WorkerThread` of its own; `InlineWorker` in virtual time. Closed by `aclose`.
        hasher: computes digests; another thread, so that a new replica is hashed while it is written. Closed too.
    """

    def __init__(self, merge: MergeConfig, spool: Spool, worker: Worker, hasher: Worker | None = None) -> None:
        self._outer = OuterStep.of(merge)
        self.rule = UpdateRule.of(merge)
        self._spool = spool
        self._worker = worker
        self._hasher = worker if hasher is None else hasher

    async def verify(self) -> None:
        """Check that this process may merge. Call it before the first merge.

        Raises:
            UnsoundArithmetic: the merging thread does not compute IEEE float32; the machine's fault, do not retry.
        """
        await self._worker.run(verify_arithmetic)

    async def new_sum(self, layout: TensorLayout) -> UpdateSum:
        """Return a sum of no results. Raises `SpoolFull`."""
        return await self._worker.run(partial(running_sum, self._spool, layout, self.rule.mean))

    async def add(self, total: UpdateSum, weight: Weight, result: Buffer, layout: TensorLayout) -> None:
        """Add a result, which was checked, to a sum.

        Raises:
            UnsoundArithmetic: as `verify`.
            InternalError, InvalidResult: it does not fit; the caller's bug.
        """

        def work() -> None:
            verify_arithmetic()
            total.add(weight, decode_result(result, layout)[1], self._dropping(result))

        await self._worker.run(work)

    async def update(self, total: UpdateSum, header: UpdateHeader, layout: TensorLayout) -> SpoolFile:
        """Return the file of the update that a sum makes.

        Raises:
            Diverged: the mean is not finite; the same for whoever makes it.
            SpoolFull: the update finds no room.
            UnsoundArithmetic: as `verify`.
        """

        def work() -> SpoolFile:
            verify_arithmetic()
            stream = update_of(header, layout, partial(total.encoded, header.codec))
            file = self._spool.keep(stream.views(), stream.size_bytes)
            self._spool.drop_pages()
            return file

        return await self._worker.run(work)

    async def applied(self, start: Replica, update: Difference) -> HeldReplica:
        """Return the replica after an update, in a file of the spool unless it is small.

        Raises:
            Diverged: the new values are not finite; the same on every replica.
            SpoolFull: the new replica finds no room.
            UnsoundArithmetic: as `verify`.
            InternalError: an update that does not fit; the caller's bug.
        """
        size_bytes = checkpoint_size_bound(start.layout, has_momentum=start.has_momentum)
        if size_bytes <= MERGED_IN_MEMORY_BYTES or sys.byteorder != "little":  # which a checkpoint file has
            replica = await self._worker.run(partial(self._merge, start, update, None))
            return HeldReplica(replica, await self.digest(replica))
        file = self._spool.file()
        replica, digest = await self._merge_into(file, start, update)
        return HeldReplica(replica, digest, file)

    async def _merge_into(self, file: SpoolFile, replica: Replica, update: Difference) -> tuple[Replica, Blake3]:
        """Return the replica after an update, and its digest, which is computed while it is written to an empty file.

        Raise as `applied`.
        """
        form = CheckpointForm(replica.step + 1, replica.layout, replica.has_momentum)
        progress, failure = MergeProgress(), None
        output = await self._worker.run(partial(self._output, file, form, progress))
        async with asyncio.TaskGroup() as group:
            digesting = group.create_task(
                self._hasher.run(partial(following_digest, form, output, progress, self._dropping()))
            )
            try:
                merged = await self._worker.run(partial(self._merge, replica, update, output))
            except EpochalError as error:
                failure = error
            finally:
                progress.end()
        if failure is not None:
            raise failure
        digest = digesting.result()
        assert digest is not None
        return merged, digest

    async def digest(self, replica: Replica) -> Blake3:
        """Return the replica digest, hashed off the event loop."""
        return await self._hasher.run(partial(replica_digest, replica, self._dropping()))

    async def aclose(self) -> None:
        """End the threads; bounded."""
        await self._worker.aclose()
        await self._hasher.aclose()

    def _output(self, file: SpoolFile, form: CheckpointForm, progress: MergeProgress) -> MergeOutput:
        """Return where the new replica is written, in a checkpoint file whose header is written here."""
        blank = blank_checkpoint(form)
        room = file.prepared(blank.size_bytes)
        room[: len(blank.header)] = blank.header
        parameters, momentum = arrays_in(room[len(blank.header) :], form)
        dropping = self._dropping()

        def written(count: int) -> None:
            progress.advance(count)
            dropping()

        return MergeOutput(parameters, momentum, written)

    def _merge(self, replica: Replica, update: Difference, output: MergeOutput | None) -> Replica:
        verify_arithmetic()
        return merge(replica, update, self._outer, output)

    def _dropping(self, read: Buffer = b"") -> Callable[[], None]:
        """Return what is called after each piece, and gives pages back after several: the spool's, and of what is read.

        Args:
            read: a file that is read meanwhile, mapped perhaps.
        """
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


def following_digest(
    form: CheckpointForm, output: MergeOutput, progress: MergeProgress, read: Callable[[], None]
) -> Blake3 | None:
    """Return the digest of the replica that is written to `output`; None if the merge ends before it is whole.

    Args:
        form: of the new replica.
        output: where it is written.
        progress: how far that has come.
        read: called after each piece.
    """
    digest, before = ReplicaDigest(form.step, form.layout, form.has_momentum), 0
    for name, shape in form.layout.entries:
        digest.begin(name, shape)
        parameter = output.parameters[name].reshape(-1)
        for values in (parameter, *((output.momentum[name].reshape(-1),) if form.has_momentum else ())):
            for start in range(0, values.size, HASHED_ELEMENTS):
                piece = values[start : start + HASHED_ELEMENTS]
                if not progress.wait_for(before + start + piece.size):
                    return None
                digest.add_values(piece)
                read()
        before += parameter.size
    return digest.hexdigest()
