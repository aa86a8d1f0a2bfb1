"""Clients open the run's model from its model document, and take the learning rates that the run document implies."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace

import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import DataProvider, TokenBatch
from epochal.run_manager.context import RunAccess
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import Desync, Unsupported
from epochal.state.model.first_model import FirstModel
from epochal.state.model.replica import first_replica
from epochal.state.model.tensors import Float32Array
from epochal.state.phase_names import RunState
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.null import DummyModel, NullTrainer
from epochal.trainers.protocol import TrainedRound
from tests.support.data.states import state_file
from tests.support.models.bag_of_bytes import ENTRY, BagOfBytes
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient, open_dummy_provider
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

HUB = {"model__LLM__architecture": "HfLlama", "model__LLM__checkpoint": {"Hub": {"repo_id": "a/b"}}}
MAKE = "tests.support.simulate.simulated_coordinator.make_first_model"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModelSpec]]:
    """The specs of the models that the operator makes for a run whose config is in a repository, in turn."""
    specs = [
        ModelSpec.model_validate({"architecture": "HfLlama", "hf": {"model_type": "bag", "number": number}})
        for number in (1, 2)
    ]
    turns = iter(specs)

    def make(state: StateFile, step: int) -> FirstModel:
        return FirstModel.of(next(turns), first_replica(step, BagOfBytes().initial_parameters(bytes(32))))

    monkeypatch.setitem(ARCHITECTURES, Architecture.HF_LLAMA, ENTRY)
    monkeypatch.setattr(MAKE, make)
    return iter([specs])


def noting(seen: list[ModelSpec], trainer: str = "null") -> ClientSpec:
    """A client that notes the model that it opens."""

    async def open_provider(access: RunAccess) -> DataProvider:
        seen.append(access.spec)
        return await open_dummy_provider(access)

    return ClientSpec(trainer, open_provider=open_provider)


@in_virtual_time
async def test_client_needs_only_the_coordinator_to_open_the_model(made: Iterator[list[ModelSpec]]) -> None:
    seen: list[ModelSpec] = []
    async with simulated_run(state_file(config__total_steps=2, **HUB), seed=0) as run:
        ends = await run.play(noting(seen, "numpy"), noting(seen))
        assert seen == [next(made)[0]] * 2
        assert len({end.replica_digest for end in ends}) == 1
        assert (await run.audit()).problems == ()
        await run.coordinator.restart_after(1)
        await run.coordinator.wait_for(lambda: run.coordinator.service.accepting)
        assert run.coordinator.run.models.spec == seen[0]


@in_virtual_time
async def test_client_ends_if_the_run_is_restored_with_another_model(made: Iterator[list[ModelSpec]]) -> None:
    async with simulated_run(state_file(config__total_steps=50, config__init_min_clients=1, **HUB), seed=0) as run:
        before = [replace(run.coordinator.journal.segments[0], records=())]
        running = run.tasks.create_task(_end_of(run.client(1)))
        await run.coordinator.reached(RunState.ROUND_TRAIN, 2)
        run.coordinator.restore(before)
        assert "another model" in await running


async def _end_of(client: SimulatedClient) -> str:
    """Return the message of the error with which a client ends."""
    with pytest.raises(Desync) as caught:
        await client.agent.run()
    return caught.value.message


@in_virtual_time
async def test_run_of_the_dummy_model_goes_from_its_start_to_its_end() -> None:
    seen: list[ModelSpec] = []
    state = state_file(config__total_steps=2, model__LLM__architecture="HfLlama", model__LLM__checkpoint="Dummy")
    async with simulated_run(state, seed=0) as run:
        await run.play(noting(seen), noting(seen))
        assert {spec.dummy for spec in seen} == {True}
        assert (await run.audit()).problems == ()


class RateNoting(NullTrainer):
    """Notes the learning rates of each round."""

    def __init__(self, rates: dict[int, tuple[float, ...]]) -> None:
        super().__init__(DummyModel())
        self._rates = rates

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        self._rates[plan.step] = plan.learning_rates
        return await super().train(plan, parameters, batches)


@in_virtual_time
async def test_learning_rate_of_all_clients_grows_after_a_cold_start() -> None:
    state = state_file(
        config__total_steps=4,
        config__epoch_time=600,
        model__LLM__cold_start_warmup_steps=2,
        model__LLM__lr_schedule={"Constant": {"base_lr": 0.8, "warmup_init_lr": 0.0, "warmup_steps": 0}},
        merge__local_steps=2,
    )
    found: list[dict[int, tuple[float, ...]]] = [{}, {}]

    def spec(number: int) -> ClientSpec:
        def open_trainer(state: StateFile, worker: Worker) -> NullTrainer:
            return RateNoting(found[number])

        return ClientSpec(open_trainer=open_trainer)

    async with simulated_run(state, seed=0) as run:
        await run.play(spec(0), spec(1))
    assert found[0][1] == pytest.approx((0.0, 0.2))
    assert found[0][2] == pytest.approx((0.4, 0.6))
    assert found[0][3] == (0.8, 0.8)
    assert found[0] == found[1]


@in_virtual_time
async def test_dummy_model_is_trained_by_the_null_trainer_only() -> None:
    state = state_file(model__LLM__checkpoint="Dummy")
    async with simulated_run(state, seed=0) as run:
        run.start(run.client(2))
        with pytest.raises(Unsupported, match=r"trainer numpy: .*\n.*model\.LLM\.checkpoint is Dummy.*--trainer null"):
            await run.client(1, ClientSpec("numpy")).agent.run()
