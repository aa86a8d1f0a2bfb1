"""A store that is broken for good: the readers are told, and the process ends with a code for its supervisor."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from epochal.cli.main import EXIT_STORE_LOST
from epochal.coordinator.serve import SCRATCH_ADVICE
from epochal.coordinator.store.files.folder import SCRATCH_FOLDER
from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import joined_by_hand
from tests.support.drive.processes import PATIENT, RealRun, in_phase, prepared_run, real_run


def break_store(run: RealRun) -> None:
    """Let the coordinator's next writing of its state file fail in a way that does not pass."""
    while True:
        with contextlib.suppress(FileExistsError):  # it is being written
            return os.mkdir(run.run_dir / "state.toml.new")


@pytest.mark.nightly
async def test_broken_store_is_told_to_readers_and_ends_the_process(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=2, config__warmup_time=8, **PATIENT) as run:
        client = await run.start_client()
        async with joined_by_hand(run, 1) as hand:
            await hand.watch.until(in_phase(RunState.WARMUP))
            break_store(run)
            with contextlib.suppress(Refused):  # the present phase may not have been written yet
                await hand.api.withdraw()
            with pytest.raises(Refused, match="Is a directory") as told:  # a long poll ends with the reason
                await run.watch.until(in_phase(RunState.FINISHED))
            assert told.value.kind == "store-failed"
            ready = await run.http.get("/readyz")
            assert ready.status_code == 503
            assert "Is a directory" in ready.text
            assert "Is a directory" in str((await run.status()).store_problem)
        assert await run.coordinator.wait(BOUND_S) == EXIT_STORE_LOST
        (said,) = run.events(run.coordinator, "store_failed")
        assert said["level"] == "critical"
        assert "Traceback" not in run.coordinator.log_path.read_text()

        os.rmdir(run.run_dir / "state.toml.new")
        await run.start_coordinator()
        refused = await run.until_logged(client, "coordinator_refuses_for_now")
        assert (refused["kind"], refused["level"]) == ("store-failed", "warning")
        assert "Is a directory" in refused["reason"]
        async with joined_by_hand(run, 1):
            await run.until(in_phase(RunState.FINISHED))


async def test_coordinator_whose_scratch_is_no_folder_says_what_it_can_do(tmp_path: Path) -> None:
    """It has no `--spool`, and clients make the update themselves."""
    large = {"model__LLM__ngram": {"context": 8, "embedding": 64, "hidden": 600}, "config__total_steps": 1}
    async with prepared_run(tmp_path, **large) as run:
        run.run_dir.mkdir()
        (run.run_dir / SCRATCH_FOLDER).touch()
        await run.start_coordinator()
        await run.start_client()
        reason = (await run.until_logged(run.coordinator, "update_delayed"))["reason"]
        assert SCRATCH_ADVICE in reason
        assert "--spool" not in reason
        (run.run_dir / SCRATCH_FOLDER).unlink()
        await run.finish()


async def test_stop_after_the_store_broke_is_still_a_failure(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=1, **PATIENT) as run, joined_by_hand(run, 1) as hand:
        await hand.watch.until(in_phase(RunState.WARMUP))
        break_store(run)  # not before the join: the start writes the state file too, after it listens
        with contextlib.suppress(Refused):  # the present phase may not have been written yet
            await hand.api.withdraw()
        await run.until_logged(run.coordinator, "store_failed", while_answering=False)
        with contextlib.suppress(ProcessLookupError):  # a busy machine: it has ended by itself, with the same code
            run.coordinator.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(run.coordinator.process.wait(), BOUND_S) == EXIT_STORE_LOST
