"""Real clients that train with torch, each in its own way or on a device that fails: replicas stay equal."""

from pathlib import Path

import pytest

from tests.support.heavy import need_module
from tests.support.processes import real_run
from tests.support.tiny_llama import LLAMA_STATE

FAILING = "tests.support.failing_trainer:Bigrams"
VARIABLE = "FAILING_DEVICE"
TORCH = ("--device", "cpu", "--micro-batch", "2")


async def test_torch_clients_of_other_precision_and_threads_merge_alike(tmp_path: Path) -> None:
    need_module("torch")
    need_module("transformers")
    overrides = {"config__init_min_clients": 2, "config__total_steps": 4, "merge__inner_state": "keep"}
    async with real_run(tmp_path, **overrides, **LLAMA_STATE) as run:
        await run.start_client(*TORCH, trainer="torch")
        await run.start_client(*TORCH, "--precision", "bf16", trainer="torch", environment={"OMP_NUM_THREADS": "2"})
        wrong = await run.command("client", run.url)
        wrong.expect(2, "HfLlama is trained by --trainer torch")
        report = await run.finish()
        joined = {line["client_id"] for line in run.events(run.coordinator, "membership_changed")}
        assert joined == {run.client_id_of(child) for child in run.clients}, "a client that cannot train has joined"
        assert (report.rounds, report.quarantined, report.unapplied) == (4, 0, 0)
        for child in run.clients:
            trained = run.events(child, "round_trained")
            assert len(trained) == 4
            assert all(line["loss"] < 6 for line in trained)


async def test_run_goes_on_past_failed_devices_and_flushed_denormals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("torch")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
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
