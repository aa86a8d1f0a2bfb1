"""`epochal rewind` on a real run: it asks or is told, real clients begin again, and the audit is clean."""

import json
from pathlib import Path

from epochal.state.phase_names import RunState
from tests.support.drive.processes import PATIENT, in_phase, in_training, real_run

TRAINING = {
    "config__total_steps": 10,
    "config__checkpoint_every": 2,
    "config__epoch_time": 10_000,
    "config__min_clients": 2,
    "config__init_min_clients": 2,
}


async def test_rewound_run_trains_its_data_again_and_is_proven(tmp_path: Path) -> None:
    async with real_run(tmp_path, 2, **TRAINING, **PATIENT) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        await run.until(in_training(6))
        await run.command_here("pause", run.url, **token)
        await run.until(in_phase(RunState.PAUSED))
        listed = json.loads((await run.command_here("rewind", run.url, "--json", **token)).out)
        step = listed["choices"][0]["step"]
        (await run.command_here("rewind", run.url, **token)).expect(0, "it can go back to", f"  step {step}  (")
        (await run.command_here("rewind", run.url, "--skip", **token)).expect(2, "--skip goes with --to STEP")
        (await run.command_here("rewind", run.url, "--to", "1", **token)).expect(1, "no checkpoint of step 1 is kept")
        (await run.command_here("rewind", run.url, "--to", str(step), **token)).expect(2, "give --yes")
        ran = await run.command_here("rewind", run.url, "--to", str(step), "--yes", **token)
        ran.expect(0, f"the run went back to step {step}: ", "trained on again")
        again = await run.command_here("rewind", run.url, "--to", str(step), "--yes", **token)
        again.expect(0, f"nothing to take back: the run is at step {step}")
        (await run.command_here("status", run.url)).expect(0, f"rewound to step {step}")
        (await run.command_here("resume", run.url, **token)).expect(0)
        report = await run.finish(went_back=True)
        assert (report.rewinds, report.rounds, report.skipped) == (1, 10, 0)
        assert report.dropped_rounds >= 2
        assert all(run.events(child, "run_went_back") for child in run.clients)
        (await run.command_here("audit", str(run.run_dir))).expect(0, "dropped rounds")
        await run.stop_coordinator()
        for command in ("backup", "publish"):
            to = tmp_path / command
            (await run.command_here(command, str(run.run_dir), str(to))).expect(0)
            (await run.command_here("audit", "--recompute", str(to))).expect(0, "dropped rounds")
