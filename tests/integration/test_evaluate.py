"""`epochal evaluate` on real runs: while one goes on, again, from its store, and with torch on chosen options."""

import json
from pathlib import Path
from typing import Any

from tests.support.heavy import need_module
from tests.support.processes import RealRun, prepared_run, real_run
from tests.support.tiny_llama import LLAMA_STATE

ON_DUMMY = ("--data", "dummy", "--samples", "4")


async def history(run: RealRun) -> list[dict[str, Any]]:
    shown = await run.command("status", run.url, "--json")
    shown.expect(0)
    found: list[dict[str, Any]] = json.loads(shown.out)["evaluations"]
    return found


async def test_followed_run_has_its_evaluations_in_its_history(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=4, config__epoch_time=65) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        await run.start_client()
        follow = ("evaluate", run.url, *ON_DUMMY, "--follow", "--name", "held-out")
        ran = await run.command(*follow, **token)
        ran.expect(0, "test-run, replica 4: loss ", "recorded as held-out")
        await run.finish()
        kept = await history(run)
        assert [(one["name"], one["samples"]) for one in kept] == [("held-out", 4)] * len(kept)
        assert kept[-1]["step"] == 4
        again = await run.command(*follow, **token)
        again.expect(0)
        assert (again.out, again.err) == ("", "test-run, replica 4: recorded already\n")
        (await run.command("status", run.url)).expect(0, "held-out")
        assert [line["step"] for line in run.events(run.coordinator, "evaluation_recorded")][-1] == 4
        await run.kill_coordinator()
        await run.start_coordinator()
        assert await history(run) == kept
        await run.stop_coordinator()
        stored = await run.command("evaluate", str(run.run_dir), *ON_DUMMY, "--json")
        stored.expect(0)
        assert "not in the run's history" in stored.err
        found = json.loads(stored.out)
        assert (found["step"], found["loss"], found["recorded"]) == (4, kept[-1]["loss"], False)
        await run.prove()


async def test_transformer_is_evaluated_with_the_chosen_options(tmp_path: Path) -> None:
    need_module("torch")
    need_module("transformers")
    async with prepared_run(tmp_path, **LLAMA_STATE) as run:
        await run.start_coordinator()
        options = (*ON_DUMMY, "--device", "cpu", "--precision", "float32", "--micro-batch", "2")
        ran = await run.command("evaluate", run.url, *options, "--json", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0)
        found = json.loads(ran.out)
        assert (found["step"], found["tokens"], found["recorded"]) == (0, 4 * 15, True)
        (kept,) = await history(run)
        assert (kept["name"], kept["loss"]) == ("validation", found["loss"])
