"""A run of each codec: what clients send is as small as specified, and every replica is the recomputed one."""

from pathlib import Path

import pytest

from state.results import METADATA_BOUND_BYTES
from tests.support.processes import real_run

STEPS = 3
RATES = {"int8": 1.02, "int4": 0.52}
"""Bytes a parameter at most."""
CHECKPOINT_RATE = 8
"""Bytes a parameter of a checkpoint: it holds parameters and outer momentum."""


@pytest.mark.parametrize("codec", RATES)
async def test_run_of_a_codec_ends_with_equal_replicas_and_a_clean_audit(codec: str, tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=STEPS, config__init_min_clients=2, merge__codec=codec) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (STEPS, 0, 0)
        assert report.recomputed_steps == STEPS + 1
        blobs = [path.stat().st_size for path in (run.run_dir / "blobs").rglob("*") if path.is_file()]
    parameters = max(blobs) / CHECKPOINT_RATE
    results = [size for size in blobs if size < max(blobs) / 2]
    assert len(results) == 2 * STEPS
    assert max(results) <= RATES[codec] * parameters + METADATA_BOUND_BYTES
