"""Trainers by name, and what they refuse to train."""

import math

import pytest

from runtime.worker_thread import InlineWorker
from state.errors import InvalidInput, Unsupported
from tests.support.local_training import SEED, arriving, plan_of, sequences_of
from tests.support.states import state_file
from trainers.registry import open_trainer


def test_registry_with_an_unknown_trainer_names_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"no trainer 'numpi'; allowed: null, numpy"):
        open_trainer("numpi", state_file(), InlineWorker())


@pytest.mark.parametrize("name", ["numpy", "null"])
def test_registry_with_another_architecture_names_the_line_to_change(name: str) -> None:
    with pytest.raises(Unsupported, match=r"model\.LLM\.architecture is HfLlama; allowed: EpochalNgram"):
        open_trainer(name, state_file(model__LLM__architecture="HfLlama"), InlineWorker())


def test_registry_with_an_optimizer_that_numpy_lacks_names_the_line() -> None:
    distro = {
        "Distro": {"compression_decay": 0.9, "compression_topk": 8, "compression_chunk": 64, "quantize_1bit": True}
    }
    with pytest.raises(Unsupported, match=r"model\.LLM\.optimizer is Distro; allowed: AdamW or Dummy"):
        open_trainer("numpy", state_file(model__LLM__optimizer=distro), InlineWorker())


async def test_registry_opens_numpy_without_an_optimizer_for_the_dummy_one() -> None:
    trainer = open_trainer("numpy", state_file(model__LLM__optimizer="Dummy"), InlineWorker())
    start = await trainer.initial_parameters(SEED)
    trained = await trainer.train(plan_of(2), start, arriving(sequences_of(8, 8)))
    assert trained.loss == pytest.approx(math.log(256), abs=0.1)
    assert not any(array.any() for array in trained.difference.values())
