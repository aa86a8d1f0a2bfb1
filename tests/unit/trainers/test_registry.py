"""Trainers by name, and what they refuse to train."""

import pytest

from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import InvalidInput, Unsupported
from epochal.trainers.ngram.model import padded_tokens
from epochal.trainers.registry import check_trains, open_trainer
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.local_training import SEED, TINY, arriving, loss_and_gradient, plan_of, sequences_of


def test_registry_with_an_unknown_trainer_names_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"no trainer 'numpi'; allowed: null, numpy"):
        open_trainer("numpi", state_file(), state_file().model.LLM.spec, InlineWorker())


@pytest.mark.parametrize("name", ["numpy", "null", "torch"])
def test_registry_with_an_unknown_architecture_names_the_line_to_change(name: str) -> None:
    state = state_file(model__LLM__architecture="Torchtitan")
    with pytest.raises(Unsupported, match=r"model\.LLM\.architecture is Torchtitan; allowed: Custom or EpochalNgram"):
        open_trainer(name, state, state.model.LLM.spec, InlineWorker())


def test_registry_with_an_optimizer_that_numpy_lacks_names_the_line() -> None:
    distro = {
        "Distro": {"compression_decay": 0.9, "compression_topk": 8, "compression_chunk": 64, "quantize_1bit": True}
    }
    state = state_file(model__LLM__optimizer=distro)
    with pytest.raises(Unsupported, match=r"model\.LLM\.optimizer is Distro; allowed: AdamW, Muon or Dummy"):
        open_trainer("numpy", state, state.model.LLM.spec, InlineWorker())


def test_trainer_in_a_replayed_run_refuses_a_members_dropout() -> None:
    need_module("transformers")
    state = state_file(
        model__LLM__architecture="HfAuto", verify={}, merge__inner_state="reset", access__genesis="members"
    )
    spec = state.model.LLM.spec.model_copy(update={"hf": {"model_type": "opt", "num_hidden_layers": 1}})
    with pytest.raises(Unsupported, match=r"model\.LLM\.hf\.dropout is 0\.1; allowed: `dropout = 0\.0` where"):
        check_trains("torch", state, spec)


async def test_registry_opens_numpy_that_only_measures_for_the_dummy_optimizer() -> None:
    state = state_file(model__LLM__optimizer="Dummy", model__LLM__ngram=TINY.model_dump())
    trainer, sequences = open_trainer("numpy", state, state.model.LLM.spec, InlineWorker()), sequences_of(*[68] * 8)
    parameters = await trainer.initial_parameters(SEED)
    measured = await trainer.train(plan_of(8, 8), parameters, arriving(sequences))
    loss, token_count, _ = loss_and_gradient(parameters, padded_tokens(sequences, TINY.context))
    assert measured.loss == pytest.approx(loss / token_count, rel=1e-5)
    assert not any(array.any() for array in measured.difference.values())
