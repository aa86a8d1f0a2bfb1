"""Replicas of the last rounds, rebuilt where they are asked for: from a kept checkpoint, or one held, and the updates.

The rule kept here: a replica is handed out only with the digest on which the run agreed.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from epochal.coordinator_client.api import RunRequests
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import HeldReplica, Merger
from epochal.runtime.worker_thread import Worker
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.model.replica import examine_checkpoint, examined_replica
from epochal.state.refusals import Refusal
from epochal.state.updates import UpdateHeader, decode_update
from epochal.state.wire import Blake3


class PastReplicas:
    """The last replicas of one run.

    Args:
        requests: the coordinator.
        checkpoints: returns the checkpoints that it holds.
        merger: applies updates.
        spool: holds checkpoints, updates and replicas.
        worker: examines checkpoints, off the event loop.
        most: maximum number of replicas that are held.
    """

    def __init__(
        self,
        requests: RunRequests,
        checkpoints: Callable[[], Awaitable[tuple[CheckpointRef, ...]]],
        merger: Merger,
        spool: Spool,
        worker: Worker,
        most: int,
    ) -> None:
        self._requests = requests
        self._checkpoints = checkpoints
        self._merger = merger
        self._spool = spool
        self._worker = worker
        self._most = most
        self._download = CheckpointDownload(requests, spool, worker)
        self._held: dict[int, HeldReplica] = {}

    def forget(self) -> None:
        """Drop every replica: the run's history changed."""
        self._held.clear()

    async def at(self, step: int, digest: Blake3) -> HeldReplica:
        """Return replica `step`, which has this digest.

        Raises:
            Refused: `not-found`: neither a checkpoint before it is kept, nor all updates since.
            InvalidDocument: what the coordinator keeps leads to another replica.
            SpoolFull: there is no room.
            Diverged, UnsoundArithmetic: as `Merger.applied`.
        """
        try:
            held = await self._rebuilt(await self._nearest(step), step)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            self.forget()  # what follows on those held is deleted, as after a long absence: a later checkpoint is kept
            held = await self._rebuilt(await self._nearest(step), step)
        if held.digest != digest:
            self.forget()
            message = f"replica {step} is rebuilt with digest {held.digest}; the run agreed on {digest}"
            raise InvalidDocument(message, step=step)
        return held

    async def _rebuilt(self, held: HeldReplica, step: int) -> HeldReplica:
        while held.step < step:
            held = self._keep(await self._next(held))
        return held

    async def oldest(self) -> int:
        """Return the step of the oldest kept checkpoint, before which nothing can be rebuilt; 0 without one."""
        return min((checkpoint.step for checkpoint in await self._checkpoints()), default=0)

    async def _nearest(self, step: int) -> HeldReplica:
        """Return the last replica up to `step` that is held; if there is none, that of the last checkpoint up to it."""
        found = max((held for held in self._held if held <= step), default=None)
        if found is not None:
            return self._held[found]
        kept = [checkpoint for checkpoint in await self._checkpoints() if checkpoint.step <= step]
        if not kept:
            raise InvalidDocument(f"the coordinator holds no checkpoint of a step up to {step}", step=step)
        return self._keep(await self._loaded(max(kept, key=lambda checkpoint: checkpoint.step)))

    async def _loaded(self, checkpoint: CheckpointRef) -> HeldReplica:
        file = await self._download.fetch(checkpoint)
        examined = await self._worker.run(partial(examine_checkpoint, file))
        replica = await self._worker.run(partial(examined_replica, file.view()))
        self._spool.drop_pages()
        return HeldReplica(replica, examined.replica_digest, file)

    async def _next(self, held: HeldReplica) -> HeldReplica:
        step = held.step + 1
        outcome = await self._requests.outcome(step)
        if outcome.replica_digest != held.digest:
            self.forget()
            raise InvalidDocument(f"the outcome of step {step} was attested on another replica than {held.digest}")
        file = await self._download.fetch(await self._requests.update(step))
        header = UpdateHeader.of(outcome, self._merger.rule(outcome.step))
        return await self._merger.applied(held.replica, decode_update(file.view(), header, held.replica.layout))

    def _keep(self, held: HeldReplica) -> HeldReplica:
        self._held[held.step] = held
        while len(self._held) > self._most:
            del self._held[min(self._held)]
        return held
