"""Publishing a checkpoint: the claim first, because the coordinator takes only blobs that were announced."""

from functools import partial

from run_manager.context import StepContext
from run_manager.replica.keeper import HeldReplica
from state.messages import CheckpointReport
from state.replica import checkpoint_bytes
from state.wire import Sha256, sha256_hex


async def publish_checkpoint(context: StepContext, held: HeldReplica) -> None:
    """Claim the replica's digest, name the blob, and upload it.

    Raises:
        Refused: this client is not the checkpointer (any more), or its bytes do not hold what it claims.
    """
    data, sha256 = await context.worker.run(partial(_encode, held))
    await context.session.report(CheckpointReport(held.step, held.digest, sha256, len(data)))
    await context.exchange.publish(sha256, data)
    context.exchange.forget((sha256,))


def _encode(held: HeldReplica) -> tuple[bytes, Sha256]:
    data = checkpoint_bytes(held.replica)
    return data, sha256_hex(data)
