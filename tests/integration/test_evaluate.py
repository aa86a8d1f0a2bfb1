"""`epochal evaluate` on a real run: at its coordinator, and from its store."""

import json
from pathlib import Path

import numpy as np
import pytest

from epochal.state.phase_names import RunState
from tests.contract.epochal.test_benchmarks import QUESTIONS, task_file
from tests.support.drive.processes import in_phase, prepared_run
from tests.support.heavy import need_module

ON_DUMMY = ("--data", "dummy", "--samples", "4")


async def test_evaluation_is_recorded_by_the_coordinator_for_its_operator(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator()
        evaluate = ("evaluate", run.url, *ON_DUMMY)
        ran = await run.command_here(*evaluate, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0, "recorded as validation")
        assert ran.err == ""
        for command in (evaluate, ("export", run.url, "--out", str(tmp_path / "out"))):
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


async def test_evaluation_takes_the_held_out_data_of_its_step(tmp_path: Path) -> None:
    for name, first in (("first", 0), ("second", 96)):
        np.arange(first, first + 160, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    held_out = {"model__LLM__held_out_location": {"Local": str(tmp_path / "first.bin")}}
    async with prepared_run(tmp_path, config__total_steps=2, config__init_min_clients=1, **held_out) as run:
        await run.start_coordinator()
        admin = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        change = ("change", run.url, "--at-step", "2", "--set")
        wrong = await run.command_here(*change, 'model.LLM.held_out_location={ Server = "h:1" }', **admin)
        wrong.expect(1, "model.LLM.held_out_location is", 'exactly one of "Dummy", { Local = … }')
        second = f"model.LLM.held_out_location.Local='{tmp_path / 'second.bin'}'"
        (await run.command_here(*change, second, **admin)).expect(0, "model.LLM.held_out_location.Local: ")
        evaluate = ("evaluate", run.url, "--allow-local", str(tmp_path))
        (await run.command_here(*evaluate, **admin)).expect(0, "recorded as validation")
        await run.start_client()
        await run.until(in_phase(RunState.FINISHED))
        (await run.command_here(*evaluate, **admin)).expect(0, "recorded as validation-from-2")
        kept = json.loads((await run.command_here("status", run.url, "--json")).out)["evaluations"]
        assert [(one["name"], one["step"], one["samples"]) for one in kept] == [
            ("validation", 0, 10),
            ("validation-from-2", 2, 10),
        ]
        assert len({one["data_fingerprint"] for one in kept}) == 2


@pytest.mark.nightly
async def test_benchmarks_of_a_task_file_are_in_the_history_of_a_served_run(tmp_path: Path) -> None:
    need_module("lm_eval")
    task = task_file(tmp_path)
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator()
        ran = await run.command_here(
            *("evaluate", run.url, "--tasks", task),
            EPOCHAL_ADMIN_TOKEN=run.admin_token,
            HF_DATASETS_CACHE=str(tmp_path / "datasets"),
        )
        ran.expect(0, f"({QUESTIONS} questions); recorded as endings")
        kept = json.loads((await run.command_here("status", run.url, "--json")).out)["evaluations"]
        assert [(one["name"], one["step"], one["samples"]) for one in kept] == [("endings", 0, QUESTIONS)] * 2
        assert [one["benchmark"]["metric"] for one in kept] == ["acc", "acc_norm"]
        assert all(one["benchmark"]["stderr"] > 0 and one["loss"] is None for one in kept)
        (await run.command_here("status", run.url)).expect(0, "endings acc_norm")
        metrics = (await run.http.get("/metrics")).text
        assert f'epochal_run_benchmark_samples{{metric="acc",name="endings"}} {QUESTIONS}.0' in metrics
