"""Checkpoints of several parts between real processes, and read by commands."""

from pathlib import Path

import pytest

from epochal.tools.export.folder import read_note
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import in_training, real_run

LARGE = {"model__LLM__ngram": {"context": 8, "embedding": 64, "hidden": 256}}
"""A model whose checkpoint is 1.2 MB."""
PART_BYTES = 100_000
RUN = {
    "config__client_timeout_s": 9,
    "config__total_steps": 4,
    "config__init_min_clients": 2,
    "config__min_clients": 2,
    **LARGE,
}


@pytest.mark.nightly
async def test_parts_are_fetched_and_commands_read_them(tmp_path: Path) -> None:
    async with real_run(tmp_path, **RUN, blobs__part_bytes=PART_BYTES) as run:
        await run.start_client()
        killed = await run.start_client()
        await run.until(in_training(2))
        killed.kill()
        await killed.wait(BOUND_S)
        await run.start_client()
        report = await run.finish(without=(killed,))
        assert (report.rounds, report.unapplied, report.recomputed_steps) == (4, 0, 5)
        checkpoint = run.watch.seen[-1].checkpoint
        assert checkpoint is not None
        assert checkpoint.part_count == -(-checkpoint.size_bytes // PART_BYTES) > 10
        assert len(list((run.run_dir / "blobs").glob("??/*"))) >= checkpoint.part_count
        for place, out in ((str(run.run_dir), tmp_path / "stored"), (run.url, tmp_path / "served")):
            ran = await run.command_here("export", place, "--out", str(out), EPOCHAL_ADMIN_TOKEN=run.admin_token)
            ran.expect(0, "replica 4")
            note = read_note(out)
            assert note is not None
            assert note.checkpoint_sha256 == checkpoint.blob_sha256
