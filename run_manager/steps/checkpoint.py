"""The checkpoints that this client publishes: the run's first one, one at the end of an epoch, and ones within it.

A checkpoint is claimed first, because the coordinator takes only blobs that were announced. Every client claims the
digest of an epoch's last replica, and the elected checkpointer uploads the bytes.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from epochal.coordinator_client.session import CoordinatorSession
from epochal.run_manager.context import FollowedConfig
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.runtime.background_task import BackgroundTask
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.files.spool_part import SentPart
from epochal.runtime.merging.merger import HeldReplica
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker
from epochal.state.checkpoint_parts import CheckpointPart, part_ranges, parts_digest
from epochal.state.documents import RunDocument
from epochal.state.errors import Refused
from epochal.state.messages.requests import CheckpointReport
from epochal.state.model.first_model import FirstModel, first_checkpoint
from epochal.state.model.replica import checkpoint_of
from epochal.state.phase_names import ROUND_PHASES
from epochal.state.refusals import Retry
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

UPLOADS_AT_A_TIME = 3
"""Number of parts that are uploaded at a time: below the coordinator's limit for one client."""


@dataclass(frozen=True, slots=True)
class CheckpointPublisher:
    """Publishes checkpoints of one client. Its worker writes and hashes them."""

    session: CoordinatorSession
    config: FollowedConfig
    spool: Spool
    worker: Worker

    async def publish(self, held: HeldReplica) -> None:
        """Claim the replica's digest, name the checkpoint's parts, and upload each of them once.

        Raises:
            Refused: this client is not the checkpointer (any more), or its bytes do not hold what it claims.
        """
        file = held.file
        if file is None:
            file = await self.worker.run(partial(self.spool.keep, checkpoint_of(held.replica).pieces()))
        await self._publish(held, file)

    async def publish_first(self, held: HeldReplica) -> None:
        """Publish the run's first checkpoint, with the spec of its model. Raises as `publish` does."""
        pieces = first_checkpoint(FirstModel.of(self.config.spec, held.replica)).pieces()
        await self._publish(held, await self.worker.run(partial(self.spool.keep, pieces)))

    async def _publish(self, held: HeldReplica, file: SpoolFile) -> None:
        sent = [
            SentPart(file, start, stop - start)
            for start, stop in part_ranges(file.size_bytes, self.config.state.blobs.part_bytes)
        ]
        parts = tuple([CheckpointPart(await self.worker.run(part.sha256), part.size_bytes) for part in sent])
        named = parts if len(parts) > 1 else ()
        await self.session.report(CheckpointReport(held.step, held.digest, parts_digest(parts), file.size_bytes, named))
        once = {part.sha256: bytes_of for part, bytes_of in zip(parts, sent, strict=True)}
        places = asyncio.Semaphore(UPLOADS_AT_A_TIME)

        async def upload(sha256: Sha256, part: SentPart) -> None:
            async with places:
                await self.session.put_blob(sha256, part)

        try:
            async with asyncio.TaskGroup() as group:
                for sha256, part in once.items():
                    group.create_task(upload(sha256, part))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None


@dataclass(frozen=True, slots=True)
class CooldownStep:
    """The Cooldown step: the epoch's checkpoint."""

    session: CoordinatorSession
    keeper: ReplicaKeeper
    publisher: CheckpointPublisher

    async def start(self, document: RunDocument) -> None:
        """Report this client's replica, with its bytes if this client is the checkpointer.

        Raises:
            Refused: the checkpoint was verified meanwhile, or this client was not in the epoch; no harm is done.
        """
        step = document.step - 1
        held = await self.keeper.at(step)
        if document.checkpoint is not None and document.checkpoint.step == step:
            return
        if document.checkpointer == self.session.client_id:
            await self.publisher.publish(held)
        else:
            # the quorum of claims verifies the checkpointer's bytes
            await self.session.report(CheckpointReport(held.step, held.digest, None, 0))


class EpochCheckpoint:
    """One client's part in the checkpoints within an epoch. It is no step: steps go on meanwhile.

    Every client of the round keeps the replica, and one of them writes it. The replica is kept, on the disk, from the
    document that asks for its checkpoint to the one that no longer does, because another client may be asked after the
    first.
    """

    def __init__(
        self,
        session: CoordinatorSession,
        keeper: ReplicaKeeper,
        publisher: CheckpointPublisher,
        group: asyncio.TaskGroup,
    ) -> None:
        self._session = session
        self._keeper = keeper
        self._publisher = publisher
        self._task = BackgroundTask(group, "checkpoint within the epoch")
        self._due: tuple[int, bool] | None = None
        self._kept: HeldReplica | None = None

    async def apply_state(self, document: RunDocument) -> None:
        """Keep or write the checkpoint that is asked for. An upload goes on when another client is asked, too."""
        step = document.checkpointing_step
        due = None
        if step is not None and document.run_state in ROUND_PHASES:
            due = step, document.checkpointer == self._session.client_id or self._due == (step, True)
        if due == self._due:
            return
        if due is None or self._due is None or due[0] != self._due[0]:
            self._kept = None
        self._due = due
        await self._task.replace(None if due is None else self._keep(*due))

    async def stop(self) -> None:
        """Cancel the upload under way, and forget the replica."""
        self._due = self._kept = None
        await self._task.replace(None)

    async def _keep(self, step: int, is_asked: bool) -> None:
        """Keep the replica once it is held, and publish it if this client is asked to."""
        if self._kept is None:
            self._kept = await self._keeper.at(step)
        if not is_asked:
            return
        try:
            await self._publisher.publish(self._kept)
        except Refused as refusal:  # another one was faster, or the run goes on without it
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("checkpoint_refused", extra={"step": step, "kind": refusal.kind, "reason": refusal.message})
