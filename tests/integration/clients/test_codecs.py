"""A run of each codec: what clients send is as small as specified, and every replica is the recomputed one."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.state.results import METADATA_BOUND_BYTES
from tests.support.drive.processes import real_run
from tests.support.thinned import thinned

STEPS = 3
SPARSE: dict[str, Any] = {
    "merge__codec": "sparse",
    "merge__error_feedback": True,
    "merge__outer_lr": 1.0,
    "merge__outer_momentum": 0.0,
}
CODECS: dict[str, tuple[dict[str, Any], float]] = {
    "int8": ({"merge__codec": "int8"}, 1.02),
    "int4 with error feedback": ({"merge__codec": "int4", "merge__error_feedback": True}, 0.52),
    "int2": ({"merge__codec": "int2", "merge__error_feedback": True}, 0.27),
    "sparse": (SPARSE, 0.04),
    "sparse over senders": (SPARSE | {"merge__mean": "senders", "merge__sparse_keep": 32}, 0.02),
}
"""Settings, and bytes a parameter at most, beside those of the header and of small tensors."""
VALUE_BYTES = 4


@thinned("name", CODECS)
async def test_run_of_a_codec_ends_with_equal_replicas_and_a_clean_audit(name: str, tmp_path: Path) -> None:
    overrides, rate = CODECS[name]
    async with real_run(tmp_path, config__total_steps=STEPS, config__init_min_clients=2, **overrides) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (STEPS, 0, 0)
        assert report.recomputed_steps == STEPS + 1
        files = DirectoryBlobs.for_reading(run.run_dir)
        blobs = [await files.size(sha256) or 0 for sha256 in await files.held()]
        with closing(sqlite3.connect(run.run_dir / DATABASE_FILE)) as database:
            blobs += [size for (size,) in database.execute("SELECT size_bytes FROM epochal_blobs")]
    has_momentum = overrides.get("merge__outer_momentum") != 0
    parameters = max(blobs) / VALUE_BYTES / (1 + has_momentum)
    results = [size for size in blobs if size < VALUE_BYTES * parameters * 0.9]
    updates = [size for size in results if results.count(size) == STEPS]
    assert len(results) == 2 * STEPS + STEPS, "and an update a round"
    assert max(size for size in results if size not in updates) <= rate * parameters + METADATA_BOUND_BYTES
