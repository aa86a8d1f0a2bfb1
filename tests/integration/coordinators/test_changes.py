"""`epochal change` on a real run: settings change from a step on, over a restart, and the audit computes all again."""

import json
from pathlib import Path

from epochal.state.config.state_file import parse_state
from tests.support.drive.processes import real_run


async def test_settings_change_without_a_restart_and_stay_changed_over_one(tmp_path: Path) -> None:
    async with real_run(tmp_path / "run", config__total_steps=8) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}

        async def change(*options: str) -> str:
            ran = await run.command_here("change", run.url, *options, **token)
            ran.expect(0)
            return ran.out

        assert "no change is announced" in await change()
        settings = ("--set", "merge.outer_lr=0.5", "--set", "merge.codec=int2", "--set", "merge.error_feedback=true")
        lines = (await change("--at-step", "4", *settings)).splitlines()
        assert lines[0] == "from step 4:"
        assert "  merge.outer_lr: 0.7 → 0.5" in lines
        assert any(line.startswith("  merge.codec: ") and line.endswith('→ "int2"') for line in lines)
        edited = tmp_path / "edited.toml"
        text = (run.run_dir / "state.toml").read_text()
        assert "outer_lr = 0.7" in text
        edited.write_text(text.replace("outer_lr = 0.7", "outer_lr = 0.25"))
        listed = json.loads(await change("--at-step", "6", "--file", str(edited), "--json"))
        assert [one["at_step"] for one in listed["changes"]] == [4, 6]
        fields = listed["changes"][1]["fields"]
        assert {"path": "merge.outer_lr", "before": "0.5", "after": "0.25"} in fields
        assert "nothing changes at step 6" in await change("--at-step", "6", "--cancel")
        refused = await run.command_here(
            "change", run.url, "--at-step", "9", "--set", "merge.outer_lr=-1", "--set", "run_id=x", **token
        )
        refused.expect(1, "at most 8, the run's last step", "a number above 0", "values is run_id")
        (await run.command_here("change", run.url, "--at-step", "5", **token)).expect(2, "--set, --mix or --file")
        (await run.command_here("change", run.url, "--at-step", "5", "--set", "merge.outer_lr")).expect(2, "PATH=VALUE")
        (await run.command_here("status", run.url)).expect(0, "From step 4:", "merge.outer_lr: 0.7 → 0.5")
        await run.kill_coordinator()
        await run.start_coordinator()
        await run.start_client("--name", "first")
        await run.start_client("--name", "second")
        report = await run.finish()
        assert report.rounds == 8
        assert report.problems == ()
        assert (await change()).startswith("in force since step 4:")
        place = f"/v1/runs/{run.watch.api.run_id}"
        actions = (await run.http.get(f"{place}/actions")).json()["actions"]
        assert [one["name"] for one in actions if "change" in one["name"]] == ["change", "change", "withdraw change"]
        kept = parse_state((run.run_dir / "state.toml").read_text(), "state.toml")
        assert (kept.merge.outer_lr, kept.at(4).merge.outer_lr) == (0.7, 0.5)
        audit = await run.command_here("audit", str(run.run_dir), "--recompute", **token)
        audit.expect(0)
