"""A checkpoint while rounds go on: every client of the round keeps the replica, and one of them writes it.

It is no step: steps go on meanwhile. The replica is kept, on the disk, from the document that asks for its checkpoint
to the one that no longer does, because another client may be asked after the first.
"""

import asyncio
import logging

from epochal.run_manager.context import StepContext
from epochal.run_manager.replica.keeper import HeldReplica
from epochal.run_manager.steps.checkpoint import publish_checkpoint
from epochal.runtime.background_task import BackgroundTask
from epochal.state.documents import RunDocument
from epochal.state.errors import Refused
from epochal.state.phase_names import ROUND_PHASES
from epochal.state.refusals import Retry

log = logging.getLogger(__name__)


class EpochCheckpoint:
    """One client's part in the checkpoints within an epoch.

    Args:
        group: runs the upload; it must outlive this.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._task = BackgroundTask(group, "checkpoint within the epoch")
        self._due: tuple[int, bool] | None = None
        self._kept: HeldReplica | None = None

    async def follow(self, context: StepContext, document: RunDocument) -> None:
        """Keep or write what the document asks for. One that was asked goes on writing if another one is asked too."""
        step = document.checkpointing_step
        due = None
        if step is not None and document.run_state in ROUND_PHASES:
            due = step, document.checkpointer == context.session.client_id or self._due == (step, True)
        if due == self._due:
            return
        if due is None or self._due is None or due[0] != self._due[0]:
            self._kept = None
        self._due = due
        await self._task.replace(None if due is None else self._keep(context, *due))

    async def stop(self) -> None:
        """Cancel what is under way, and forget the replica."""
        self._due = self._kept = None
        await self._task.replace(None)

    async def _keep(self, context: StepContext, step: int, is_asked: bool) -> None:
        """Keep the replica once it is held, and publish it if this client is asked to."""
        if self._kept is None:
            self._kept = await context.keeper.at(step)
        if not is_asked:
            return
        try:
            await publish_checkpoint(context, self._kept)
        except Refused as refusal:  # another one was faster, or the run goes on without it
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("checkpoint_refused", extra={"step": step, "kind": refusal.kind, "reason": refusal.message})
