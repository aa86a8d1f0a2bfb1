"""`epochal evaluate` on a real run: at its coordinator, and from its store."""

import json
from pathlib import Path

from tests.support.drive.processes import prepared_run

ON_DUMMY = ("--data", "dummy", "--samples", "4")


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
