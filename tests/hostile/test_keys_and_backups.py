"""The coordinator's key is lost or changed, and a run is copied while it goes on."""

import asyncio
import contextlib
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.coordinator.proof.audit import audit_store
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.stored_rows import execute, flip
from tests.support.drive.processes import RealRun, in_training, real_run
from tests.support.thinned import thinned

KEY = "name = 'coordinator.key'"
"""Which note of the run is the coordinator's key, in SQL."""
ATTEMPTS = 5
SHORT_EPOCHS = {
    "config__warmup_time": 2,
    "config__max_round_train_time": 2,
    "config__epoch_time": 2.1,
    "config__total_steps": 100_000,
}


def delete_key(run_dir: Path) -> None:
    execute(run_dir, f"DELETE FROM epochal_notes WHERE {KEY}")


def flip_key(run_dir: Path) -> None:
    flip(run_dir, "epochal_notes", "value", KEY)


@pytest.mark.nightly
@thinned("harm", [delete_key, flip_key], ids=["deleted", "flipped"], kept=1)
async def test_start_without_the_runs_key_is_refused_until_it_is_replaced(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with real_run(tmp_path, 1, config__total_steps=100_000) as run:
        (client,) = run.clients
        before = await run.until(in_training(3))
        await run.stop_coordinator()
        harm(run.run_dir)
        said = await run.refused_start()
        assert str(run.run_dir) in said
        assert "restore it from a backup" in said
        assert "--new-coordinator-key" in said
        assert any("key" in problem for problem in (await audit_store(str(run.run_dir), recompute=False)).problems)
        run.end_soon()
        await run.start_coordinator("--new-coordinator-key")
        run.watch.seen.clear()
        after = await run.watch.next()
        assert after.coordinator_key != before.coordinator_key
        assert after.lineage != before.lineage
        late = await run.start_client()
        assert await client.wait(BOUND_S) == 2, "it has joined under the former key"
        assert "epochal key forget" in client.log_tail()
        key_path = str(tmp_path / "client-1.key")
        (await run.command("key", "forget", key_path, run.url)).expect(0, "forgot")
        returned = await run.start_client("--key", key_path)
        await run.finish(without=(client,))
        assert run.events(late, "joined")
        assert run.events(returned, "joined")


async def begun_backup(run: RealRun, to: Path) -> Process:
    """Return a backup that was stopped in the middle."""
    command = (sys.executable, "-m", "epochal", "backup", str(run.run_dir), str(to))
    for _ in range(ATTEMPTS):
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert b"copying " in await process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        if not await asyncio.to_thread(to.exists):
            return process
        process.send_signal(signal.SIGCONT)
        await process.wait()
        shutil.rmtree(to)
    raise AssertionError("no backup was stopped before it was complete")


def readable_by_others(folder: Path) -> list[Path]:
    """Return what others than its owner may read or write of the folder, of what stays while it is looked at."""
    found = []
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mode & 0o077:
                found.append(path)
    return found


@pytest.mark.nightly
async def test_backup_that_takes_longer_than_epochs_is_whole_and_starts(tmp_path: Path) -> None:
    to = tmp_path / "backup"
    async with real_run(tmp_path, 2, **SHORT_EPOCHS) as run:
        await run.until(lambda document: document.epoch >= 1 and document.run_state is RunState.ROUND_TRAIN)
        assert readable_by_others(run.run_dir) == []
        backup = await begun_backup(run, to)
        before = run.watch.seen[-1]
        swept = len(run.events(run.coordinator, "blobs_swept"))
        await run.until(lambda document: document.epoch >= before.epoch + 2)
        assert len(run.events(run.coordinator, "blobs_swept")) == swept, "sweeps wait for the backup"
        backup.send_signal(signal.SIGCONT)
        assert await backup.wait() == 0
        (await run.command("audit", str(to))).expect(0, "all checks passed")
        await run.until(lambda _: len(run.events(run.coordinator, "blobs_swept")) > swept)
        await run.stop_coordinator()
        shutil.rmtree(run.run_dir)
        to.rename(run.run_dir)
        assert "with --restored" in await run.refused_start(code=2)
        await run.start_coordinator("--restored")
        run.watch.seen.clear()
        after = await run.until(lambda document: document.step > before.step + 1)
        assert after.lineage != before.lineage


@pytest.mark.nightly
async def test_run_whose_key_is_put_back_goes_on(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, config__total_steps=100_000) as run:
        await run.until(in_training(2))
        await run.stop_coordinator()
        columns = "run_id, name, value, hash"
        (kept,) = execute(run.run_dir, f"SELECT {columns} FROM epochal_notes WHERE {KEY}")
        delete_key(run.run_dir)
        await run.refused_start()
        execute(run.run_dir, f"INSERT INTO epochal_notes ({columns}) VALUES (?, ?, ?, ?)", kept)
        last_step = run.end_soon()
        await run.start_coordinator()
        assert (await run.finish()).rounds == last_step
