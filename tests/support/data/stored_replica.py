"""The newest replica that a run's store holds."""

from pathlib import Path

from epochal.coordinator.store.open import open_store_reader
from epochal.state.model.replica import Replica, parse_checkpoint
from epochal.tools.checkpoints.readable_run import StoredRun


async def newest_replica(run_dir: Path) -> Replica:
    """Return the replica of the newest checkpoint in a store."""
    run = StoredRun(open_store_reader(str(run_dir)))
    reference = (await run.now()).checkpoints[-1]
    return parse_checkpoint(b"".join([piece async for piece in run.pieces(reference)]))
