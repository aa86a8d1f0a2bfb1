"""`epochal export` on real runs: from a store and from a coordinator's address, once and while the run goes on."""

import json
from pathlib import Path

from coordinator.store.open import open_store_reader
from epochal.checkpoints.runs import StoredRun
from epochal.export.destinations import step_name
from state.replica import Replica, parse_checkpoint
from tests.support.heavy import need_module
from tests.support.processes import prepared_run, real_run
from tests.support.tiny_llama import LLAMA_STATE, plain_llama
from trainers.sources.local import local_source


async def newest_replica(run_dir: Path) -> Replica:
    """Return the replica of the newest checkpoint in a store."""
    run = StoredRun(open_store_reader(str(run_dir)))
    reference = (await run.now()).checkpoints[-1]
    return parse_checkpoint(b"".join([piece async for piece in run.pieces(reference)]))


def is_export_of(folder: Path, replica: Replica) -> bool:
    """Whether the folder holds exactly this replica's parameters."""
    shapes = {name: values.shape for name, values in replica.parameters.items()}
    found = dict(local_source(folder).tensors(shapes))
    return all((found[name] == values).all() for name, values in replica.parameters.items())


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_llama_is_exported_from_store_and_address_for_transformers(tmp_path: Path) -> None:
    need_module("torch")
    need_module("transformers")
    import torch
    from transformers import AutoModelForCausalLM

    async with prepared_run(tmp_path, **LLAMA_STATE) as run:
        await run.start_coordinator()
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        (await run.command("export", str(run.run_dir), "--out", str(tmp_path / "a"))).expect(0, "test-run, replica 0")
        (await run.command("export", run.url, "--out", str(tmp_path / "b"), **token)).expect(0, "test-run, replica 0")
        refused = await run.command("export", run.url, "--out", str(tmp_path / "c"), "--admin-token", "a-guess")
        refused.expect(2, "is not the admin token")
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "c.partial").exists()
    replica = await newest_replica(run.run_dir)
    expected, tokens = plain_llama(replica.parameters), torch.arange(64).reshape(2, 32)
    for name in ("a", "b"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        with torch.no_grad():
            assert float(loaded(tokens, labels=tokens).loss) == float(expected(tokens, labels=tokens).loss)


async def test_follow_exports_a_run_to_its_end_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "exports"
    async with real_run(tmp_path / "run", config__total_steps=4, config__epoch_time=65) as run:
        await run.start_client()
        follow = ("--out", str(out), "--follow", "--keep", "1", "--dtype", "bfloat16")
        ran = await run.command("export", run.url, *follow, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0, "test-run, replica 4")
        await run.finish()
    assert names_of(out) == [step_name(4)]
    assert json.loads((out / step_name(4) / "config.json").read_text())["dtype"] == "bfloat16"
    again = await run.command("export", str(run.run_dir), "--out", str(tmp_path / "final"), "--follow")
    again.expect(0, "test-run, replica 4")
    assert is_export_of(tmp_path / "final" / step_name(4), await newest_replica(run.run_dir))
