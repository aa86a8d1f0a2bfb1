"""`epochal evaluate` on real runs: while one goes on, again, from its store, and with torch on chosen options."""

import json
from pathlib import Path

from tests.support.heavy import need_module
from tests.support.processes import prepared_run, real_run
from tests.support.tiny_llama import LLAMA_STATE

ON_DUMMY = ("--data", "dummy", "--samples", "4")


async def test_followed_run_has_its_evaluations_in_its_history(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=4, config__epoch_time=65) as run:
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        await run.start_client()
        follow = ("evaluate", run.url, *ON_DUMMY, "--follow", "--name", "held-out")
        ran = await run.command(*follow, **token)
        ran.expect(0, "test-run, replica 4: loss ", "recorded as held-out")
        report = await run.finish()
        kept = (await run.status()).evaluations
        assert [(one.name, one.samples) for one in kept] == [("held-out", 4)] * len(kept)
        assert (kept[-1].step, report.evaluations) == (4, len(kept))
        again = await run.command(*follow, **token)
        again.expect(0)
        assert (again.out, again.err) == ("", "test-run, replica 4: recorded already\n")
        assert [line["step"] for line in run.events(run.coordinator, "evaluation_recorded")][-1] == 4
        await run.kill_coordinator()
        await run.start_coordinator()
        assert (await run.status()).evaluations == kept


async def test_store_s_evaluation_is_recorded_where_a_coordinator_serves_it(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator()
        evaluate = ("evaluate", str(run.run_dir), *ON_DUMMY)
        without = await run.command(*evaluate, EPOCHAL_ADMIN_TOKEN="")
        without.expect(0, "replica 0: loss", f"not in the run's history: the coordinator at {run.url} takes it with")
        ran = await run.command(*evaluate, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0, "recorded as validation")
        assert ran.err == ""
        for command in (
            evaluate,
            ("evaluate", run.url, *ON_DUMMY),
            ("export", run.url, "--out", str(tmp_path / "out")),
        ):
            wrong = await run.command(*command, EPOCHAL_ADMIN_TOKEN="nope")
            wrong.expect(2, "--admin-token or EPOCHAL_ADMIN_TOKEN is not the admin token of this run's coordinator")
            assert wrong.out == ""
            assert "opened" not in wrong.err, "no data before the token"
        shown = await run.command("status", run.url, "--json")
        (kept,) = json.loads(shown.out)["evaluations"]
        assert (kept["name"], kept["step"]) == ("validation", 0)
        await run.stop_coordinator()
        stopped = await run.command(*evaluate, "--json", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        stopped.expect(0, "not in the run's history: no coordinator serves")
        assert json.loads(stopped.out)["recorded"] is False


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
        (kept,) = (await run.status()).evaluations
        assert (kept.name, kept.loss) == ("validation", found["loss"])
