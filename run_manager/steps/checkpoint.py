"""Publishing a checkpoint: the claim first, because the coordinator takes only blobs that were announced."""

import asyncio
from functools import partial

from epochal.run_manager.context import StepContext
from epochal.run_manager.events import BlobSent
from epochal.run_manager.replica.keeper import HeldReplica
from epochal.runtime.files.spool import SpoolFile
from epochal.runtime.files.spool_part import SentPart
from epochal.runtime.task_errors import first_error
from epochal.state.checkpoint_parts import CheckpointPart, part_ranges, parts_digest
from epochal.state.messages.requests import CheckpointReport
from epochal.state.model.first_model import FirstModel, first_checkpoint
from epochal.state.model.replica import checkpoint_of
from epochal.state.wire import Sha256

UPLOADS_AT_A_TIME = 3
"""Number of parts that are uploaded at a time: below the coordinator's limit for one client."""


async def publish_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Claim the replica's digest, name the checkpoint's parts, and upload each of them once.

    Raises:
        Refused: this client is not the checkpointer (any more), or its bytes do not hold what it claims.
    """
    file = held.file
    if file is None:
        file = await context.worker.run(partial(context.spool.keep, checkpoint_of(held.replica).pieces()))
    await _publish(context, held, file)


async def publish_first_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Publish the run's first checkpoint, with the spec of its model. Raises as `publish_checkpoint` does."""
    pieces = first_checkpoint(FirstModel.of(context.spec, held.replica)).pieces()
    await _publish(context, held, await context.worker.run(partial(context.spool.keep, pieces)))


async def _publish(context: StepContext, held: HeldReplica, file: SpoolFile) -> None:
    sent = [
        SentPart(file, start, stop - start)
        for start, stop in part_ranges(file.size_bytes, context.state.blobs.part_bytes)
    ]
    parts = tuple([CheckpointPart(await context.worker.run(part.sha256), part.size_bytes) for part in sent])
    named = parts if len(parts) > 1 else ()
    await context.session.report(CheckpointReport(held.step, held.digest, parts_digest(parts), file.size_bytes, named))
    once = {part.sha256: bytes_of for part, bytes_of in zip(parts, sent, strict=True)}
    places = asyncio.Semaphore(UPLOADS_AT_A_TIME)

    async def upload(sha256: Sha256, part: SentPart) -> None:
        async with places:
            await _upload(context, sha256, part)

    try:
        async with asyncio.TaskGroup() as group:
            for sha256, part in once.items():
                group.create_task(upload(sha256, part))
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None


async def _upload(context: StepContext, sha256: Sha256, part: SentPart) -> None:
    started_s = asyncio.get_running_loop().time()
    await context.session.put_blob(sha256, part)
    context.dependencies.observer(BlobSent(part.size_bytes, asyncio.get_running_loop().time() - started_s))
