"""The client's merge: `state/merging.py`'s rule, off the event loop, in a thread whose arithmetic was tested.

The new replica may go to a file of the spool, in the format of a checkpoint: then memory grows neither with the model
nor with the number of contributions. The rule kept here: nothing is merged in a thread that has not just shown that it
keeps denormals, because a library can switch them off for every thread started after it was loaded, and the replica
would differ without an error.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from epochal.runtime.files.spool import SpoolFile
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError, InternalError
from epochal.state.merging import CHUNK_ELEMENTS, Contribution, MergeOutput, OuterStep, merge, verify_arithmetic
from epochal.state.model.digest import ReplicaDigest
from epochal.state.model.replica import CheckpointForm, Replica, arrays_in, blank_checkpoint, replica_digest

PROGRESS_TIMEOUT_S = 600.0
"""Maximum time to wait for the next chunk of a replica that is written."""
CALLS_PER_DROP = 16
"""Pieces of at most 1 MiB of each file that are read between two times that their pages are given back."""


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
    """Merges outcomes into replicas with one outer optimizer.

    Args:
        outer: the run's outer learning rate and momentum.
        worker: a `WorkerThread` of its own; `InlineWorker` in virtual time. Closed by `aclose`.
        drop_pages: gives the pages of mapped files back to the system.
        hasher: computes digests; another thread, so that a new replica is hashed while it is written. Closed too.
    """

    def __init__(
        self,
        outer: OuterStep,
        worker: Worker,
        drop_pages: Callable[[], None] = lambda: None,
        hasher: Worker | None = None,
    ) -> None:
        self._outer = outer
        self._worker = worker
        self._hasher = worker if hasher is None else hasher
        self._drop_pages = drop_pages

    async def verify(self) -> None:
        """Check that this process may merge. Call it before the first merge.

        Raises:
            UnsoundArithmetic: the merging thread does not compute IEEE float32; the machine's fault, do not retry.
        """
        await self._worker.run(verify_arithmetic)

    async def merge(self, replica: Replica, contributions: Sequence[Contribution]) -> Replica:
        """Return the replica after this outcome, in memory; see `epochal.state.merging.merge`.

        Args:
            replica: the round's start.
            contributions: the outcome's results.

        Raises:
            UnsoundArithmetic: as `verify`.
            Diverged: the new values are not finite; the same on every replica.
            InternalError: an empty outcome, or a contribution that does not fit; the caller's bug.
        """
        return await self._worker.run(partial(self._merge, replica, contributions, None))

    async def merge_into(
        self, file: SpoolFile, replica: Replica, contributions: Sequence[Contribution]
    ) -> tuple[Replica, str]:
        """Return the replica after this outcome, and its digest, which is computed while it is written.

        Args:
            file: an empty file, which becomes the new replica's checkpoint file.
            replica: the round's start.
            contributions: the outcome's results.

        Raises:
            SpoolFull: the new replica finds no room.
            UnsoundArithmetic, Diverged, InternalError: as `merge`.
        """
        form = CheckpointForm(replica.step + 1, replica.layout, replica.has_momentum)
        progress, failure = MergeProgress(), None
        output = await self._worker.run(partial(self._output, file, form, progress))
        async with asyncio.TaskGroup() as group:
            digesting = group.create_task(
                self._hasher.run(partial(following_digest, form, output, progress, self._dropping()))
            )
            try:
                merged = await self._worker.run(partial(self._merge, replica, contributions, output))
            except EpochalError as error:
                failure = error
            finally:
                progress.end()
        if failure is not None:
            raise failure
        digest = digesting.result()
        assert digest is not None
        return merged, digest

    async def digest(self, replica: Replica) -> str:
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

    def _merge(self, replica: Replica, contributions: Sequence[Contribution], output: MergeOutput | None) -> Replica:
        verify_arithmetic()
        return merge(replica, contributions, self._outer, output)

    def _dropping(self) -> Callable[[], None]:
        """Return what is called after each piece, and gives pages back after several."""
        calls = 0

        def done() -> None:
            nonlocal calls
            calls += 1
            if calls % CALLS_PER_DROP == 0:
                self._drop_pages()

        return done


def following_digest(
    form: CheckpointForm, output: MergeOutput, progress: MergeProgress, read: Callable[[], None]
) -> str | None:
    """Return the digest of the replica that is written to `output`; None if the merge ends before it is whole.

    Args:
        form: of the new replica.
        output: where it is written.
        progress: how far that has come.
        read: called after each piece.
    """
    digest, before = ReplicaDigest(form.step, len(form.layout.entries), form.has_momentum), 0
    for name, shape in form.layout.entries:
        digest.begin(name, shape)
        parameter = output.parameters[name].reshape(-1)
        for values in (parameter, *((output.momentum[name].reshape(-1),) if form.has_momentum else ())):
            for start in range(0, values.size, CHUNK_ELEMENTS):
                piece = values[start : start + CHUNK_ELEMENTS]
                if not progress.wait_for(before + start + piece.size):
                    return None
                digest.add_values(piece)
                read()
        before += parameter.size
    return digest.hexdigest()
