"""A small Llama from a config in the state file, trained by real clients: replicas are equal, the audit is clean."""

from pathlib import Path

from tests.support.heavy import need_module
from tests.support.processes import real_run
from tests.support.tiny_llama import LLAMA_STATE

TORCH = ("--device", "cpu", "--micro-batch", "2")


async def test_two_torch_clients_of_other_precision_train_a_llama_alike(tmp_path: Path) -> None:
    need_module("torch")
    need_module("transformers")
    overrides = {"config__init_min_clients": 2, "config__total_steps": 4, "merge__inner_state": "keep"}
    async with real_run(tmp_path, **overrides, **LLAMA_STATE) as run:
        await run.start_client(*TORCH, trainer="torch")
        await run.start_client(*TORCH, "--precision", "bf16", trainer="torch")
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
