"""`epochal change` on a real run: settings change from a step on, over a restart, and the audit computes all again."""

import json
from pathlib import Path

import numpy as np
import pytest

from epochal.state.config.state_file import parse_state
from tests.support.drive.processes import in_training, real_run
from tests.support.heavy import need_module

MESH = ("--mesh", "data=2", "--processes", "2", "--batch-size", "2")


@pytest.mark.parametrize("value", ["merge.delay=1", "merge.error_feedback=true"])
async def test_verification_is_refused_that_a_change_makes_impossible(tmp_path: Path, value: str) -> None:
    """The file on disk does not have the change, with which no honest result could be computed again."""
    verified = {"verify__percent": 100, "merge__inner_state": "reset"}
    async with real_run(tmp_path / "run", config__total_steps=10_000, merge__inner_state="reset") as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        for step, setting in (("3", value), ("6", "merge.delay=0")):
            options = ("--at-step", step, "--set", setting, "--set", "merge.error_feedback=false")
            given = options[:4] if step == "3" else options
            (await run.command_here("change", run.url, *given, **token)).expect(0)
        await run.stop_coordinator()
        run.write_state(config__total_steps=10_000, **verified)
        said = await run.refused_start(code=2)
        assert value.partition("=")[0] in said
        assert "with the changes that the run has made since" in said
        run.write_state(config__total_steps=10_000, merge__inner_state="reset")
        await run.start_coordinator()
        await run.start_client()
        await run.until(in_training(7))
        await run.stop_coordinator()
        run.write_state(config__total_steps=10_000, **verified)
        await run.start_coordinator()
        await run.until(in_training(9))


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


@pytest.mark.parametrize("options", [(), pytest.param(MESH, marks=pytest.mark.nightly)], ids=["plain", "mesh"])
async def test_mix_changes_in_mid_run_and_clients_agree(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A source that does not exist, which nobody can know before the clients have come, ends none of them."""
    if options:
        need_module("torch")
    for number, name in enumerate(("en", "de")):
        np.full(16 * 400, number, "<u2").tofile(tmp_path / f"{name}.bin")
    sources = [{"name": name, "location": {"Local": f"{name}.bin"}} for name in ("en", "de")]
    schedule = [{"from": 0, "weights": {"en": 1, "de": 1}}]
    (tmp_path / "mix.json").write_text(json.dumps({"sources": sources, "schedule": schedule}))
    mix = {"model__LLM__data_location": {"WeightedHttp": str(tmp_path / "mix.json")}, "config__total_steps": 8}
    async with real_run(tmp_path / "run", config__init_min_clients=2, **mix) as run:
        token, place = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}, f"/v1/runs/{run.watch.api.run_id}/changes"
        admin = {"Authorization": f"Bearer {run.admin_token}"}
        wrong = {"at_step": 2, "mix": {"fr": 1.0}}
        assert (await run.http.post(place, json=wrong, headers=admin)).status_code == 200
        (await run.command_here("change", run.url, "--at-step", "4", "--mix", "fr=1", **token)).expect(2, "'en', 'de'")
        (await run.command_here("change", run.url, "--at-step", "4", "--mix", "de=1", **token)).expect(0)
        await run.start_client()
        await run.start_client(*options)
        await run.until(in_training(1))
        refused = await run.http.post(place, json={**wrong, "at_step": 8}, headers=admin)
        assert refused.status_code == 422
        assert refused.json()["detail"].endswith("the mix's sources, by name or by number from 0: en, de")
        report = await run.finish()
    assert (report.rounds, report.problems) == (8, ())
    for child in run.clients:
        assert {one["data_index"] > 0 for one in run.events(child, "mix_change_left_out")} == {True}
        assert not run.events(child, "round_failed")
