"""A transformer goes where every model goes: over a training service, and into an evaluation."""

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
from epochal.state.intervals import BatchId, DataIds
from epochal.tools.evaluate.losses import EvaluationOptions, opened_evaluation
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import RemoteOptions, TrainerOptions, open_trainer
from epochal.trainers.remote.service_messages import ServiceLimits
from epochal.training_service.service import TrainingServiceOptions
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.local_training import SEED, rounds
from tests.support.models.tiny_llama import LLAMA_SPEC, LLAMA_STATE

SEQ_LEN = 16
SAMPLES = 12
PLAN = RoundPlan(1, (BatchId(0, SAMPLES - 1),), 1, (0.01, 0.01))


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    need_module("torch")
    need_module("transformers")
    text = b"a byte follows a byte. " * SEQ_LEN * SAMPLES
    np.frombuffer(text[: SEQ_LEN * SAMPLES], np.uint8).astype("<u2").tofile(tmp_path / "tokens.bin")
    location = {"Local": str(tmp_path / "tokens.bin")}
    smooth = {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.0, "eps": 1e-3}}
    fields = {"model__LLM__data_location": location, "merge__inner_state": "keep", "model__LLM__optimizer": smooth}
    return state_file(**LLAMA_STATE, **fields)


async def samples(state: StateFile) -> AsyncIterator[TokenBatch]:
    provider = await open_provider(state, lambda: "", OWNERS)
    yield await provider.get_samples(DataIds(0, SAMPLES - 1))
    await provider.aclose()


def opened(name: str, state: StateFile, remote: RemoteOptions | None = None) -> Trainer:
    return open_trainer(name, state, LLAMA_SPEC, InlineWorker(), TrainerOptions(remote))


async def test_training_service_trains_a_transformer_as_its_client_would(state: StateFile) -> None:
    trainer = opened("torch", state)
    start = await trainer.initial_parameters(SEED)
    wanted, _ = await rounds(trainer, PLAN, start, lambda: samples(state), 2)
    async with serving_training(Endpoint(port=0), TrainingServiceOptions(ServiceLimits(items=5))) as url:
        remote = opened("remote", state, RemoteOptions(url, RetryPolicy(SystemClock(), lambda: 0.0, 20.0)))
        found, _ = await rounds(remote, PLAN, start, lambda: samples(state), 2)
        await remote.aclose()
    for one, other in zip(found, wanted, strict=True):
        assert one.token_count == other.token_count == SAMPLES * (SEQ_LEN - 1)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        for name, values in other.difference.items():
            np.testing.assert_allclose(one.difference[name], values, rtol=1e-3, atol=1e-5, err_msg=name)


async def test_evaluation_of_a_transformer_is_the_loss_before_a_step(state: StateFile) -> None:
    trainer = opened("torch", state)
    start = await trainer.initial_parameters(SEED)
    one_step = RoundPlan(1, PLAN.assignment, 1, (0.01,))
    trained = await trainer.train(one_step, start, samples(state))
    async with opened_evaluation(state, LLAMA_SPEC, EvaluationOptions(OWNERS)) as evaluation:
        await evaluation.load(0, start)
        found = await evaluation.loss()
    assert (evaluation.data.samples, found.token_count) == (SAMPLES, trained.token_count)
    assert float(found.nats) / found.token_count == pytest.approx(trained.loss, rel=1e-5)
