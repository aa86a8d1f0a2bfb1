"""Publishing a checkpoint: the claim first, because the coordinator takes only blobs that were announced."""

from functools import partial

from run_manager.context import StepContext
from run_manager.replica.keeper import HeldReplica
from state.first_model import FirstModel, first_checkpoint_bytes
from state.messages import CheckpointReport
from state.replica import checkpoint_bytes
from state.wire import Sha256, sha256_hex


async def publish_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Claim the replica's digest, name the blob, and upload it.

    Raises:
        Refused: this client is not the checkpointer (any more), or its bytes do not hold what it claims.
    """
    await _publish(context, held, await context.worker.run(partial(checkpoint_bytes, held.replica)))


async def publish_first_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Publish the run's first checkpoint, with the spec of its model. Raises as `publish_checkpoint` does."""
    first = FirstModel(context.spec, held.replica)
    await _publish(context, held, await context.worker.run(partial(first_checkpoint_bytes, first)))


async def _publish(context: StepContext, held: HeldReplica, data: bytes) -> None:
    sha256: Sha256 = await context.worker.run(partial(sha256_hex, data))
    await context.session.report(CheckpointReport(held.step, held.digest, sha256, len(data)))
    await context.exchange.publish(sha256, data)
    context.exchange.forget((sha256,))
