"""A whole run of an adapter: clients that hold the base in other types, the audit, and what comes out."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator.store.store import StoreReader
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.messages.evaluation_reports import EvaluationReport
from epochal.state.model.replica import replica_digest
from epochal.tools.checkpoints.readable_run import StoredRun
from epochal.tools.evaluate.evaluator import Evaluator, EvaluatorOptions
from epochal.tools.evaluate.losses import EvaluationOptions
from epochal.tools.export.exporter import Exporter, ExportOptions
from epochal.trainers.first_parameters import make_first_model
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import TrainerOptions, open_trainer
from epochal.trainers.sources.float_types import FloatType
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import ROW_TOKENS, loss_elsewhere, spec_with, write_base
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import prove, simulated_run
from tests.support.simulate.virtual_time import run_virtually

ROUNDS = 3
PRECISIONS = ("float32", "float32", "bf16")


@pytest.fixture(autouse=True)
def peft() -> None:
    for module in ("torch", "transformers", "peft"):
        need_module(module)


def opening(base: Path, precision: str) -> Callable[[StateFile, Worker], Trainer]:
    torch = TorchOptions(device="cpu", base=base, base_precision=precision)

    def opened(state: StateFile, worker: Worker) -> Trainer:
        return open_trainer("torch", state, make_first_model(state, 0).spec, worker, TrainerOptions(torch=torch))

    return opened


async def played(base: Path) -> StoreReader:
    """Return what a run left: clients that hold the base in other types trained one adapter beside it."""
    spec = write_base(base, spec_with())
    state = state_file(
        config__init_min_clients=3,
        config__total_steps=ROUNDS,
        model__LLM__architecture="HfAuto",
        model__LLM__checkpoint={"Local": str(base)},
        model__LLM__adapter={"Lora": {"r": 4, "alpha": 8.0}},
        model__LLM__max_seq_len=ROW_TOKENS,
        model__LLM__lr_schedule={"Constant": {"base_lr": 0.05, "warmup_init_lr": 0.0, "warmup_steps": 0}},
        merge__codec="int4",
    )
    first = make_first_model(state, 0).replica
    async with simulated_run(state, seed=0) as run:
        ends = await run.play(*(ClientSpec(open_trainer=opening(base, one)) for one in PRECISIONS))
        models = run.coordinator.run.models
        assert [len(outcome.entries) for outcome in models.outcomes.values()] == [len(PRECISIONS)] * ROUNDS
        assert models.spec == spec
        await prove(run)
    assert [end.step for end in ends] == [ROUNDS] * len(PRECISIONS)
    assert len({end.replica_digest for end in ends}) == 1
    assert ends[0].replica_digest != replica_digest(first)
    return run.coordinator.reader


@pytest.mark.nightly
def test_adapter_of_a_run_has_its_recorded_loss_in_peft_alone(tmp_path: Path) -> None:
    base, rows = tmp_path / "base", tmp_path / "data" / "rows.bin"
    rows.parent.mkdir()
    np.random.default_rng(1).integers(0, 256, ROW_TOKENS * 12).astype("<u2").tofile(rows)
    found = asyncio.run(evaluated_and_exported(StoredRun(run_virtually(played(base))), base, rows))
    assert loss_elsewhere(rows, base) != pytest.approx(found.loss, abs=1e-3)
    assert loss_elsewhere(rows, base, tmp_path / "adapter") == pytest.approx(found.loss, abs=1e-4)


async def evaluated_and_exported(run: StoredRun, base: Path, rows: Path) -> EvaluationReport:
    """Return what the run's coordinator is to record, and export the adapter beside the base."""
    reports: list[EvaluationReport] = []

    async def record(report: EvaluationReport) -> None:
        reports.append(report)

    options = EvaluationOptions(OWNERS, str(rows.parent), torch=TorchOptions(device="cpu", base=base))
    async with Evaluator(run, options, EvaluatorOptions(None, record, lambda _: None, lambda _: None)) as evaluator:
        await evaluator.once(ROUNDS)
    chosen = ExportOptions(base.parent / "adapter", FloatType.FLOAT32, {})
    await Exporter(run, chosen, lambda _: None).once(ROUNDS)
    return reports[0]
