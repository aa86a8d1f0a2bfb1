"""The client's merge: `state/merging.py`'s rule, off the event loop, in a thread whose arithmetic was tested.

The new replica may go to a file of the spool, in the format of a checkpoint: then memory grows neither with the model
nor with the number of contributions. The rule kept here: nothing is merged in a thread that has not just shown that it
keeps denormals, because a library can switch them off for every thread started after it was loaded, and the replica
would differ without an error.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from epochal.run_manager.replica.running_digest import MergeProgress, following_digest
from epochal.runtime.files.spool import SpoolFile
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError
from epochal.state.merging import Contribution, MergeOutput, OuterStep, merge, verify_arithmetic
from epochal.state.model.replica import CheckpointForm, Replica, arrays_in, blank_checkpoint, replica_digest

CALLS_PER_DROP = 16
"""Pieces of at most 1 MiB of each file that are read between two times that their pages are given back."""


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
