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
        Refused: this client is not asked (any more), or its bytes do not hold what it claims.
    """
    data, sha256 = await context.worker.run(partial(_encode, held))
    report = CheckpointReport(held.step, held.digest, sha256, len(data))
    await context.session.report(report)
    await context.exchange.publish(sha256, data)
    context.exchange.forget((sha256,))


async def claim_replica(context: StepContext, held: HeldReplica) -> None:
    """Claim the replica's digest, for the quorum on the checkpointer's bytes. Raises `Refused` as above."""
    report = CheckpointReport(held.step, held.digest, None, 0)
    await context.session.report(report)


def _encode(held: HeldReplica) -> tuple[bytes, Sha256]:
    data = checkpoint_bytes(held.replica)
    return data, sha256_hex(data)
