"""Parts of what a coordinator keeps are missing or damaged: a start and the audit say which, and what to do."""

from pathlib import Path

import pytest

from epochal.state.documents import RunDocument
from epochal.state.phase_names import RunState
from tests.support.drive.processes import RealRun, in_training, real_run
from tests.support.drive.run_place import RunPlace

LONG = {"config__total_steps": 100_000}
SHORT_EPOCHS = {
    "config__warmup_time": 2,
    "config__max_round_train_time": 2,
    "config__epoch_time": 2.1,
    "config__total_steps": 100_000,
}


LAST = "sequence = (SELECT max(sequence) FROM epochal_records)"


async def trained(run: RealRun, steps: int = 3) -> None:
    """Let a run take some steps, and stop its coordinator."""
    await run.until(in_training(steps))
    await run.stop_coordinator()


def flip_byte(path: Path, position: int) -> None:
    """Change one bit of the byte at this position."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def newest_checkpoint(document: RunDocument, run: RealRun) -> Path:
    assert document.checkpoint is not None
    sha256 = document.checkpoint.blob_sha256
    (path,) = (run.blobs or run.run_dir).rglob(sha256)
    return path


@pytest.mark.nightly
async def test_start_without_a_blob_of_the_run_names_it(place: RunPlace) -> None:
    async with real_run(place, 1, **LONG) as run:
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
async def test_start_without_the_newest_segment_is_refused_and_names_it(place: RunPlace) -> None:
    async with real_run(place, 1, **SHORT_EPOCHS) as run:
        await run.until(lambda document: document.epoch >= 1 and document.run_state is RunState.ROUND_TRAIN)
        await run.stop_coordinator()
        ((newest,),) = place.execute(run.run_dir, "SELECT max(number) FROM epochal_segments")
        place.execute(run.run_dir, f"DELETE FROM epochal_segments WHERE number = {newest}")
        assert f"lacks segment {newest} of the journal" in await run.refused_start()
        (await run.command("audit", run.store)).expect(1, f"lacks segment {newest}")


@pytest.mark.nightly
async def test_start_without_a_journal_keeps_the_blobs_and_begins_no_run(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **SHORT_EPOCHS) as run:
        await run.until(lambda document: document.epoch >= 1 and document.run_state is RunState.ROUND_TRAIN)
        await run.stop_coordinator()
        journal, blobs = run.run_dir / "run.sqlite", run.run_dir / "blobs"
        journal.rename(tmp_path / "elsewhere")
        held = sorted(blobs.rglob("*"))
        said = await run.refused_start()
        assert "blobs of a run, but no journal" in said
        assert "restore a backup" in said
        assert sorted(blobs.rglob("*")) == held
        (tmp_path / "elsewhere").rename(journal)
        last_step = run.end_soon()
        await run.start_coordinator()
        assert (await run.finish()).rounds == last_step


@pytest.mark.nightly
async def test_audit_reads_every_blob_and_the_last_record(place: RunPlace) -> None:
    async with real_run(place, 1, **LONG) as run:
        await trained(run)
    checkpoint = newest_checkpoint(run.watch.seen[-1], run)
    flip_byte(checkpoint, checkpoint.stat().st_size // 2)
    (await run.command("audit", run.store)).expect(1, f"blob {checkpoint.name}", "step 0) is damaged")
    flip_byte(checkpoint, checkpoint.stat().st_size // 2)
    whole = await run.command("audit", run.store, "--recompute")
    whole.expect(0, "steps, all since the run's first checkpoint")
    place.flip(run.run_dir, "epochal_records", "body", LAST)
    (await run.command("audit", run.store)).expect(1, "record", "is damaged")


@pytest.mark.nightly
async def test_damaged_last_record_is_named_and_not_continued(place: RunPlace) -> None:
    async with real_run(place, 1, **LONG) as run:
        await trained(run)
        place.flip(run.run_dir, "epochal_records", "body", LAST)
        assert "is damaged: it is not the one that was kept" in await run.refused_start()
        place.flip(run.run_dir, "epochal_records", "body", LAST)
        last_step = run.end_soon()
        await run.start_coordinator()
        assert (await run.finish()).rounds == last_step
