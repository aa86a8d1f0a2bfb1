"""`epochal evaluate` on real runs: while one goes on, again, and from its store."""

import json
from pathlib import Path

import pytest

from tests.support.drive.processes import prepared_run, real_run

ON_DUMMY = ("--data", "dummy", "--samples", "4")


@pytest.mark.nightly
async def test_followed_run_has_its_evaluations_in_its_history(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=4, config__epoch_time=65) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        await run.start_client()
        follow = ("evaluate", run.url, *ON_DUMMY, "--follow", "--name", "held-out")
        ran = await run.command_here(*follow, **token)
        ran.expect(0, "test-run, replica 4: loss ", "recorded as held-out")
        report = await run.finish()
        kept = (await run.status()).evaluations
        assert [(one.name, one.samples) for one in kept] == [("held-out", 4)] * len(kept)
        assert (kept[-1].step, report.evaluations) == (4, len(kept))
        again = await run.command_here(*follow, **token)
        again.expect(0)
        assert (again.out, again.err) == ("", "test-run, replica 4: recorded already\n")
        assert [line["step"] for line in run.events(run.coordinator, "evaluation_recorded")][-1] == 4
        await run.kill_coordinator()
        await run.start_coordinator()
        assert (await run.status()).evaluations == kept


async def test_evaluation_is_recorded_by_the_coordinator_for_its_operator(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator()
        evaluate = ("evaluate", run.url, *ON_DUMMY)
        ran = await run.command_here(*evaluate, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0, "recorded as validation")
        assert ran.err == ""
        for command in (
            evaluate,
            ("export", run.url, "--out", str(tmp_path / "out")),
        ):
            wrong = await run.command_here(*command, EPOCHAL_ADMIN_TOKEN="nope")
            wrong.expect(2, "--admin-token or EPOCHAL_ADMIN_TOKEN is not the admin token of this run's coordinator")
            assert wrong.out == ""
            assert "opened" not in wrong.err, "no data before the token"
        shown = await run.command_here("status", run.url, "--json")
        (kept,) = json.loads(shown.out)["evaluations"]
        assert (kept["name"], kept["step"]) == ("validation", 0)
        stored = await run.command_here("evaluate", str(run.run_dir), *ON_DUMMY, "--json")
        stored.expect(0, "not in the run's history: only its coordinator records")
        assert json.loads(stored.out)["recorded"] is False
