"""One run of a transformer: torch clients that train each in its own way, and what commands make of the result."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from epochal.coordinator.proof.audit import AuditReport
from epochal.coordinator.store.open import open_store_reader
from epochal.state.model.replica import Replica, parse_checkpoint
from epochal.state.phase_names import RunState
from epochal.tools.checkpoints.readable_run import StoredRun
from epochal.tools.testnet.child_processes import Child
from tests.support.drive.cli import Ran
from tests.support.drive.processes import RealRun, gone, in_phase, in_training, real_run
from tests.support.heavy import need_module
from tests.support.models.tiny_llama import LLAMA_STATE, plain_llama

ROUNDS = 4
CPU = ("--device", "cpu")
BROKEN = 'raise ImportError("libtorch.so: no such file")\n'
NO_TORCH = "torch or transformers cannot be imported: ImportError: libtorch.so: no such file"
MESH = (*CPU, "--mesh", "fsdp=2", "--batch-size", "1")

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.nightly]


async def newest_replica(run_dir: Path) -> Replica:
    """Return the replica of the newest checkpoint in a store."""
    run = StoredRun(open_store_reader(str(run_dir)))
    reference = (await run.now()).checkpoints[-1]
    return parse_checkpoint(b"".join([piece async for piece in run.pieces(reference)]))


@dataclass(frozen=True)
class TrainedRun:
    """A finished run, whose coordinator still serves it.

    Attributes:
        refused: a client that cannot train its model.
    """

    run: RealRun
    report: AuditReport
    refused: tuple[Ran, Ran]
    single: tuple[Child, Child]
    mesh: Child


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trained(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TrainedRun]:
    need_module("torch")
    need_module("transformers")
    overrides = {
        "config__init_min_clients": 3,
        "config__total_steps": ROUNDS,
        "config__warmup_time": 120,  # the clients' processes import much first
        "config__max_round_train_time": 120,
        "merge__local_steps": 2,
        "merge__inner_state": "keep",
    }
    folder = tmp_path_factory.mktemp("torch") / "run"
    async with real_run(folder, 0, **overrides, **LLAMA_STATE) as run:
        (folder / "broken" / "torch").mkdir(parents=True)
        (folder / "broken" / "torch" / "__init__.py").write_text(BROKEN)
        broken_torch = {"PYTHONPATH": str(folder / "broken")}
        refused = (
            await run.command("client", run.url),
            await run.command("client", run.url, "--trainer", "torch", **broken_torch),
        )
        mesh = await run.start_client(*MESH, trainer="torch")
        one = await run.start_client(*CPU, "--micro-batch", "2", trainer="torch")
        in_bf16 = (*CPU, "--micro-batch", "2", "--precision", "bf16")
        other = await run.start_client(*in_bf16, trainer="torch", environment={"OMP_NUM_THREADS": "2"})
        await run.until(in_phase(RunState.WARMUP, RunState.ROUND_TRAIN))
        await run.until(in_training(1))
        yield TrainedRun(run, await run.finish(), refused, (one, other), mesh)


async def test_torch_clients_of_other_precision_and_threads_merge_alike(trained: TrainedRun) -> None:
    run, report = trained.run, trained.report
    assert (report.rounds, report.quarantined, report.unapplied) == (ROUNDS, 0, 0)
    for child in trained.single:
        losses = [line["loss"] for line in run.events(child, "round_trained")]
        assert len(losses) == ROUNDS
        assert max(losses) < 6


async def test_torch_client_that_cannot_train_is_refused_before_joining(trained: TrainedRun) -> None:
    run, (embedded, broken) = trained.run, trained.refused
    embedded.expect(2, "HfLlama is trained by --trainer torch")
    broken.expect(2, NO_TORCH)
    joined = {line["client_id"] for line in run.events(run.coordinator, "membership_changed")}
    assert joined == {run.client_id_of(child) for child in run.clients}, "another one has joined"


async def test_sharded_mesh_client_and_a_torch_one_hold_the_same_replicas(trained: TrainedRun) -> None:
    run = trained.run
    assert trained.report.replicas_identical
    losses = [line["loss"] for line in run.events(trained.mesh, "round_trained")]
    assert len(losses) == ROUNDS
    assert max(losses) < 6
    rounds = run.events(trained.mesh, "mesh_round")
    assert len(rounds) == ROUNDS
    for line in rounds:
        assert min(line["rows_loaded"]) > 0, "both load"
    pids = [line["pid"] for line in run.events(trained.mesh, "mesh_process_started")]
    assert len(pids) == 2
    for pid in pids:
        await gone(pid)


async def test_transformer_is_evaluated_with_the_chosen_options(trained: TrainedRun) -> None:
    run = trained.run
    options = ("--data", "dummy", "--samples", "4", *CPU, "--precision", "float32")
    ran = await run.command_here("evaluate", run.url, *options, "--json", EPOCHAL_ADMIN_TOKEN=run.admin_token)
    ran.expect(0)
    found = json.loads(ran.out)
    assert (found["step"], found["tokens"], found["recorded"]) == (ROUNDS, 4 * 15, True)
    (kept,) = (await run.status()).evaluations
    assert (kept.name, kept.loss) == ("validation", found["loss"])


async def test_llama_is_exported_from_store_and_address_for_transformers(trained: TrainedRun, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    run, said = trained.run, f"test-run, replica {ROUNDS}"
    token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
    (await run.command_here("export", str(run.run_dir), "--out", str(tmp_path / "a"))).expect(0, said)
    (await run.command_here("export", run.url, "--out", str(tmp_path / "b"), **token)).expect(0, said)
    refused = await run.command_here("export", run.url, "--out", str(tmp_path / "c"), "--admin-token", "a-guess")
    refused.expect(2, "is not the admin token")
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "c.partial").exists()
    replica = await newest_replica(run.run_dir)
    expected, tokens = plain_llama(replica.parameters), torch.arange(64).reshape(2, 32)
    for name in ("a", "b"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        with torch.no_grad():
            assert float(loaded(tokens, labels=tokens).loss) == float(expected(tokens, labels=tokens).loss)
