"""A whole run of an adapter: clients that hold the base in other types train one adapter beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.model.replica import replica_digest
from epochal.trainers.first_parameters import make_first_model
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import TrainerOptions, open_trainer
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import spec_with, write_base
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

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


@pytest.mark.nightly
@in_virtual_time
async def test_clients_with_other_bases_precisions_train_one_adapter(tmp_path: Path) -> None:
    spec = write_base(tmp_path / "base", spec_with())
    state = state_file(
        config__init_min_clients=3,
        config__total_steps=ROUNDS,
        model__LLM__architecture="HfAuto",
        model__LLM__checkpoint={"Local": str(tmp_path / "base")},
        model__LLM__adapter={"Lora": {"r": 4, "alpha": 8.0}},
        merge__codec="int4",
    )
    first = make_first_model(state, 0).replica
    async with simulated_run(state, seed=0) as run:
        ends = await run.play(*(ClientSpec(open_trainer=opening(tmp_path / "base", one)) for one in PRECISIONS))
        models = run.coordinator.run.models
        assert [len(outcome.entries) for outcome in models.outcomes.values()] == [len(PRECISIONS)] * ROUNDS
        assert models.spec == spec
    assert [end.step for end in ends] == [ROUNDS] * len(PRECISIONS)
    assert len({end.replica_digest for end in ends}) == 1
    assert ends[0].replica_digest != replica_digest(first)
