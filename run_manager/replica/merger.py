"""The client's merge: `state/merging.py`'s rule, off the event loop, in a thread whose arithmetic was tested.

The rule kept here: nothing is merged in a thread that has not just shown that it keeps denormals, because a library can
switch them off for every thread started after it was loaded, and the replica would differ without an error.
"""

from collections.abc import Sequence
from functools import partial

from runtime.worker_thread import Worker
from state.merging import Contribution, OuterStep, merge, verify_arithmetic
from state.replica import Replica, replica_digest


class Merger:
    """Merges outcomes into replicas with one outer optimizer.

    Args:
        outer: the run's outer learning rate and momentum.
        worker: a `WorkerThread` of its own; `InlineWorker` in virtual time. Closed by `aclose`.
    """

    def __init__(self, outer: OuterStep, worker: Worker) -> None:
        self._outer = outer
        self._worker = worker

    async def verify(self) -> None:
        """Check that this process may merge. Call it before the first merge.

        Raises:
            UnsoundArithmetic: the merging thread does not compute IEEE float32; the machine's fault, do not retry.
        """
        await self._worker.run(verify_arithmetic)

    async def merge(self, replica: Replica, contributions: Sequence[Contribution]) -> Replica:
        """Return the replica after this outcome; see `state.merging.merge`.

        Raises:
            UnsoundArithmetic: as `verify`.
            Diverged: the new values are not finite; the same on every replica.
            InternalError: an empty outcome, or a contribution that does not fit; the caller's bug.
        """
        return await self._worker.run(partial(self._merge, replica, contributions))

    async def digest(self, replica: Replica) -> str:
        """Return the replica digest, hashed off the event loop."""
        return await self._worker.run(partial(replica_digest, replica))

    async def aclose(self) -> None:
        """End the thread; bounded."""
        await self._worker.aclose()

    def _merge(self, replica: Replica, contributions: Sequence[Contribution]) -> Replica:
        verify_arithmetic()
        return merge(replica, contributions, self._outer)
