"""Real clients that train with torch on a device that fails: replicas stay equal."""

import os
from pathlib import Path

import pytest

from tests.support.drive.processes import real_run
from tests.support.heavy import need_module
from tests.support.models.installed_trainers import register

FAILING = "failing"
VARIABLE = "FAILING_DEVICE"


@pytest.mark.nightly
async def test_run_goes_on_past_failed_devices_and_flushed_denormals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("torch")
    register(
        tmp_path / "site", "failing-trainer", "epochal.trainers", failing="tests.support.models.failing_trainer:Bigrams"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parents[3]), str(tmp_path / "site"))))
    custom = {"model__LLM__architecture": "Custom", "model__LLM__custom": {"trainer": FAILING}}
    both = {"config__min_clients": 2, "config__init_min_clients": 2, "config__total_steps": 5}
    options = {"merge__local_steps": 2, "model__LLM__ngram": {}}
    async with real_run(tmp_path, **both, **options, **custom) as run:
        full = await run.start_client(trainer=FAILING, environment={VARIABLE: "memory"})
        flushing = await run.command("client", run.url, "--trainer", FAILING, **{VARIABLE: "flush"})
        flushing.expect(1, "flushes denormals")
        gone = await run.start_client(trainer=FAILING, environment={VARIABLE: "gone"})
        report = await run.finish()
        assert (report.rounds, report.quarantined) == (5, 0)
        for child, reason in (
            (full, "out of memory on cpu with a micro-batch of one row of 16 places"),
            (gone, "torch failed on cpu: CUDA error: the device is gone"),
        ):
            (failed,) = run.events(child, "step_failed")
            assert reason in failed["reason"], failed
            assert run.events(child, "round_trained")[-1]["step"] > failed["step"], "it trains again"
