"""Publishing a checkpoint: the claim first, because the coordinator takes only blobs that were announced."""

from run_manager.context import StepContext
from run_manager.replica.keeper import HeldReplica
from state.first_model import FirstModel, first_checkpoint
from state.messages import CheckpointReport
from state.replica import checkpoint_of
from state.tensors import TensorStream


async def publish_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Claim the replica's digest, name the blob, and upload it.

    Raises:
        Refused: this client is not the checkpointer (any more), or its bytes do not hold what it claims.
    """
    await _publish(context, held, checkpoint_of(held.replica))


async def publish_first_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Publish the run's first checkpoint, with the spec of its model. Raises as `publish_checkpoint` does."""
    await _publish(context, held, first_checkpoint(FirstModel.of(context.spec, held.replica)))


async def _publish(context: StepContext, held: HeldReplica, file: TensorStream) -> None:
    sha256 = await context.worker.run(file.sha256)
    await context.session.report(CheckpointReport(held.step, held.digest, sha256, file.size_bytes))
    await context.exchange.publish(sha256, file)
    context.exchange.forget((sha256,))
