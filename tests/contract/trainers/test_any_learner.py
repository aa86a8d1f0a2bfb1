"""A second model goes wherever the embedded one goes: trainer, mesh, training service, evaluation."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.commands.serve.trainer_service import serving_training
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.clock import SystemClock
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.permissions import OWNERS
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import TrainerFailed
from epochal.state.intervals import BatchId, DataIds
from epochal.state.model.tensors import Tensors
from epochal.tools.evaluate.losses import EvaluationOptions, opened_evaluation
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.mesh import launcher
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.protocol import TrainedRound, Trainer
from epochal.trainers.registry import RemoteOptions, TrainerOptions, open_mesh_trainer, open_trainer
from epochal.trainers.remote.service_messages import ServiceLimits
from epochal.training_service.service import TrainingServiceOptions
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.bag_of_bytes import ARCHITECTURE, ENTRY, WEIGHT, BagLearner, BagOfBytes
from tests.support.models.local_training import rounds

SEQ_LEN = 16
SAMPLES = 24
PLAN = RoundPlan(1, (BatchId(0, SAMPLES - 1),), 1, (4.0, 4.0, 4.0))
SEED = bytes(32)


@pytest.fixture(autouse=True)
def second_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, ARCHITECTURE, ENTRY)


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    text = b"a byte follows a byte. " * SEQ_LEN * SAMPLES
    np.frombuffer(text[: SEQ_LEN * SAMPLES], np.uint8).astype("<u2").tofile(tmp_path / "tokens.bin")
    location = {"Local": str(tmp_path / "tokens.bin")}
    return state_file(
        model__LLM__architecture=ARCHITECTURE.value, model__LLM__data_location=location, merge__inner_state="keep"
    )


async def samples(state: StateFile) -> AsyncIterator[TokenBatch]:
    provider = await open_provider(state, lambda: "", OWNERS)
    yield await provider.get_samples(DataIds(0, SAMPLES - 1))
    await provider.aclose()


async def trained(trainer: Trainer, state: StateFile) -> tuple[list[TrainedRound], Tensors]:
    """Three rounds, and the last parameters."""
    found = await rounds(trainer, PLAN, await trainer.initial_parameters(SEED), lambda: samples(state), 3)
    await trainer.aclose()
    return found


def numpy_trainer(state: StateFile) -> Trainer:
    return open_trainer("numpy", state, state.model.LLM.spec, InlineWorker())


def assert_same(found: list[TrainedRound], wanted: list[TrainedRound]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        np.testing.assert_allclose(one.difference[WEIGHT], other.difference[WEIGHT], rtol=1e-3, atol=1e-5)


async def test_trainer_lowers_the_loss_and_keeps_the_inner_state(state: StateFile) -> None:
    found, _ = await trained(numpy_trainer(state), state)
    merge = state_file(merge__inner_state="reset").merge
    afresh, _ = await trained(numpy_trainer(state.model_copy(update={"merge": merge})), state)
    losses = [one.loss or 0.0 for one in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    assert found[0].difference[WEIGHT].tobytes() == afresh[0].difference[WEIGHT].tobytes()
    assert found[1].difference[WEIGHT].tobytes() != afresh[1].difference[WEIGHT].tobytes()


async def test_loss_that_is_read_late_is_checked_all_the_same(state: StateFile) -> None:
    trainer = LearnerTrainer(BagOfBytes(), None, False, InlineWorker())
    with pytest.raises(TrainerFailed, match="step 1: the loss is inf"):
        await trainer.train(PLAN, {WEIGHT: np.full((256, 256), 1e38, np.float32)}, samples(state))


@pytest.mark.nightly
@pytest.mark.timeout(150)
async def test_mesh_trains_it_as_one_process_does(state: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    monkeypatch.setattr(launcher, "MODULE", "tests.support.models.bag_worker")
    wanted, _ = await trained(numpy_trainer(state), state)
    mesh = await open_mesh_trainer(
        MeshOptions("data=2", 2, 2, permissions=OWNERS), state, state.model.LLM.spec, lambda: "", InlineWorker()
    )
    assert_same((await trained(mesh, state))[0], wanted)


async def test_training_service_trains_it_as_one_process_does(state: StateFile) -> None:
    wanted, _ = await trained(numpy_trainer(state), state)
    options = TrainingServiceOptions(ServiceLimits(items=5))
    async with serving_training(Endpoint(port=0), options) as url:
        remote = RemoteOptions(url, RetryPolicy(SystemClock(), lambda: 0.0, 20.0))
        remote_options = TrainerOptions(remote)
        found, _ = await trained(
            open_trainer("remote", state, state.model.LLM.spec, InlineWorker(), remote_options), state
        )
    assert_same(found, wanted)


async def test_evaluation_computes_its_loss(state: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    found, parameters = await trained(numpy_trainer(state), state)
    monkeypatch.delattr(BagLearner, "accumulate")  # a loss alone needs no gradient
    async with opened_evaluation(state, state.model.LLM.spec, EvaluationOptions(OWNERS)) as evaluation:
        await evaluation.load(3, parameters)
        evaluated = await evaluation.loss()
    assert (evaluation.data.samples, evaluated.token_count) == (SAMPLES, SAMPLES * SEQ_LEN)
    assert found[-1].loss is not None
    assert float(evaluated.nats) / evaluated.token_count < found[-1].loss
