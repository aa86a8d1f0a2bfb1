"""Parts of what a coordinator keeps are missing or damaged: a start and the audit say which, and what to do."""

import json
import os
import shutil
from pathlib import Path

import pytest

from epochal.state.documents import RunDocument
from epochal.state.phase_names import RunState
from tests.support.drive.processes import RealRun, in_training, real_run

LONG = {"config__total_steps": 100_000}
SHORT_EPOCHS = {
    "config__warmup_time": 2,
    "config__max_round_train_time": 2,
    "config__epoch_time": 2.1,
    "config__total_steps": 100_000,
}


async def trained(run: RealRun, steps: int = 3) -> None:
    """Let a run take some steps, and stop its coordinator."""
    await run.until(in_training(steps))
    await run.stop_coordinator()


def flip(path: Path, position: int) -> None:
    """Change one bit of the byte at this position."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def newest_checkpoint(document: RunDocument, run: RealRun) -> Path:
    assert document.checkpoint is not None
    sha256 = document.checkpoint.blob_sha256
    return run.run_dir / "blobs" / sha256[:2] / sha256


@pytest.mark.nightly
async def test_start_without_a_blob_of_the_run_names_it(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **LONG) as run:
        await trained(run)
        checkpoint = newest_checkpoint(run.watch.seen[-1], run)
        kept = checkpoint.read_bytes()
        for left, wrong in ((None, "is missing"), (kept[:10], f"has 10 bytes, not {len(kept)}")):
            checkpoint.unlink(missing_ok=True)
            if left is not None:
                checkpoint.write_bytes(left)
            said = await run.refused_start()
            assert f"blob {checkpoint.name} (the checkpoint of step 0) {wrong}" in said
            assert "put them back from a backup" in said
        checkpoint.write_bytes(kept)
        last_step = run.end_soon()
        await run.start_coordinator()
        assert (await run.finish()).rounds == last_step


@pytest.mark.nightly
async def test_start_without_the_newest_segment_is_refused_unless_restored(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **SHORT_EPOCHS) as run:
        await run.until(lambda document: document.epoch >= 1 and document.run_state is RunState.ROUND_TRAIN)
        await run.stop_coordinator()
        newest = max((run.run_dir / "journal").glob("*.log"))
        newest.unlink()
        said = await run.refused_start()
        assert f"{newest} is missing" in said
        assert "--restored" in said
        (await run.command("audit", str(run.run_dir))).expect(1, newest.name)


async def test_start_without_a_journal_keeps_the_blobs_and_begins_no_run(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **LONG) as run:
        await trained(run)
        journal, blobs = run.run_dir / "journal", run.run_dir / "blobs"
        journal.rename(tmp_path / "elsewhere")
        held = sorted(blobs.rglob("*"))
        said = await run.refused_start()
        assert "blobs of a run, but no journal" in said
        assert "restore a backup" in said
        assert sorted(blobs.rglob("*")) == held
        shutil.rmtree(journal, ignore_errors=True)
        (tmp_path / "elsewhere").rename(journal)
        last_step = run.end_soon()
        await run.start_coordinator()
        assert (await run.finish()).rounds == last_step


async def test_audit_reads_every_blob_and_the_last_record(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **LONG) as run:
        await trained(run)
    checkpoint = newest_checkpoint(run.watch.seen[-1], run)
    flip(checkpoint, checkpoint.stat().st_size // 2)
    (await run.command("audit", str(run.run_dir))).expect(1, f"blob {checkpoint.name}", "step 0) is damaged")
    flip(checkpoint, checkpoint.stat().st_size // 2)
    whole = await run.command("audit", str(run.run_dir), "--recompute")
    whole.expect(0, "steps, from the run's first checkpoint")
    newest = max((run.run_dir / "journal").glob("*.log"))
    flip(newest, -1)
    (await run.command("audit", str(run.run_dir))).expect(1, "last record is damaged", "clients may have seen")
    os.truncate(newest, newest.stat().st_size - 1)
    flipped = await run.command("audit", str(run.run_dir), "--json")
    flipped.expect(0)
    assert (json.loads(flipped.out)["torn_bytes"] > 0, json.loads(flipped.out)["damaged_bytes"]) == (True, 0)


async def test_damaged_last_record_is_told_and_clients_return(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **LONG) as run:
        await trained(run)
        before = run.watch.seen[-1]
        flip(max((run.run_dir / "journal").glob("*.log")), -1)
        last_step = run.end_soon()
        await run.start_coordinator()
        (dropped,) = run.events(run.coordinator, "journal_damaged_record_dropped")
        assert dropped["level"] == "warning"
        run.watch.seen.clear()
        after = await run.watch.next()
        assert after.lineage != before.lineage
        assert (await run.finish()).rounds == last_step
