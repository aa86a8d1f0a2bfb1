"""Publishing a checkpoint: the claim first, because the coordinator takes only blobs that were announced."""

from functools import partial

from run_manager.context import StepContext
from run_manager.replica.keeper import HeldReplica
from runtime.spool import SpoolFile
from state.first_model import FirstModel, first_checkpoint
from state.messages import CheckpointReport
from state.replica import checkpoint_of


async def publish_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Claim the replica's digest, name the blob, and upload it.

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
    sha256 = await context.worker.run(file.hash)
    await context.session.report(CheckpointReport(held.step, held.digest, sha256, file.size_bytes))
    await context.exchange.publish(sha256, file)
    context.exchange.forget((sha256,))
