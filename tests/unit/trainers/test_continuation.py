"""Continuing a sequence: the same probabilities as in training, and the choice of a token among them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.trainers.architectures import open_model
from epochal.trainers.continuation import MAX_TOKENS, ChoiceOptions, Continuation, ContinuingLearner, TokenChoice
from epochal.trainers.learner import Learner
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import GPT2, adapter_of, spec_with, write_base
from tests.support.models.local_training import SEED, TINY, sequences_of
from tests.support.models.tiny_llama import LLAMA_SPEC, plain_llama, spec_of

SEQUENCE = sequences_of(9, 1, 12)[0]
UNCACHED = {"model_type": "mamba", "vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
"""A model that keeps no keys and values."""
Logits = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40)


def learner_of(kind: str, folder: Path) -> Learner:
    if kind == "ngram":
        model: Any = NgramModel(TINY)
        parameters = model.initial_parameters(SEED)
    elif kind == "adapter":
        need_module("peft")
        spec = write_base(folder / "base", spec_with())
        model = open_model(spec, options=TorchOptions(base=folder / "base"))
        parameters = adapter_of(spec, folder / "base", scale=0.3)
    else:
        need_module("transformers")
        hf: dict[str, ModelSpec] = {"llama": LLAMA_SPEC, "gpt2": spec_of(**GPT2), "uncached": spec_of(**UNCACHED)}
        model = open_model(hf[kind])
        parameters = model.initial_parameters(SEED)
    learner: Learner = model.learner()
    learner.load({name: 3 * values for name, values in parameters.items()})
    return learner


def continuation_of(learner: Learner) -> Continuation:
    assert isinstance(learner, ContinuingLearner)
    return learner.continuation()


def nats(logits: np.ndarray[Any, Any], token: int) -> float:
    exact = logits.astype(np.float64)
    return float(np.log(np.exp(exact - exact.max()).sum()) + exact.max() - exact[token])


@pytest.mark.parametrize("kind", ["ngram", "llama", "gpt2", "uncached", "adapter"])
@pytest.mark.parametrize("prompt", [1, 5])
def test_continuing_has_the_loss_of_the_same_tokens(kind: str, prompt: int, tmp_path: Path) -> None:
    learner = learner_of(kind, tmp_path)
    labels = SEQUENCE.astype(np.int64)
    labels[:prompt] = -100
    loss = learner.evaluate([Example(SEQUENCE, labels)])
    sequence = continuation_of(learner)
    logits = sequence.logits(SEQUENCE[:prompt].tolist())
    found = 0.0
    for token in SEQUENCE[prompt:].tolist():
        found += nats(logits, token)
        logits = sequence.logits([token])
    assert loss.token_count == SEQUENCE.size - prompt
    assert found == pytest.approx(float(loss.nats), rel=1e-4)


def test_likeliest_tokens_are_those_of_transformers_generate() -> None:
    need_module("transformers")
    import torch

    parameters = open_model(LLAMA_SPEC).initial_parameters(SEED)
    learner = open_model(LLAMA_SPEC).learner()
    learner.load(parameters)
    sequence, choice = continuation_of(learner), TokenChoice(ChoiceOptions(temperature=0))
    assert sequence.context == 128
    next_tokens, found = SEQUENCE.tolist(), []
    for _ in range(20):
        next_tokens = [choice.of(sequence.logits(next_tokens))]
        found += next_tokens
    given_ids = torch.tensor([SEQUENCE.tolist()])
    made = plain_llama(parameters).generate(
        given_ids, attention_mask=torch.ones_like(given_ids), max_new_tokens=20, do_sample=False, eos_token_id=None
    )
    assert found == made[0, SEQUENCE.size :].tolist()


@given(Logits, st.floats(0.05, 2), st.floats(0.01, 1), st.integers(0, 2**63 - 1))
def test_token_is_among_the_fewest_that_reach_top_p(
    values: list[float], temperature: float, top_p: float, seed: int
) -> None:
    logits = np.array(values, np.float32)
    options = ChoiceOptions(temperature=temperature, top_p=top_p, seed=seed)
    found = TokenChoice(options).of(logits)
    assert found == TokenChoice(options).of(logits), "the seed decides"
    exact = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    probabilities = exact / exact.sum()
    likelier = probabilities[probabilities > probabilities[found]].sum()
    assert likelier < top_p * (1 + 1e-9), "those before it do not reach top_p without it"


@given(Logits)
def test_without_temperature_the_likeliest_token_is_chosen(values: list[float]) -> None:
    logits = np.array(values, np.float32)
    assert logits[TokenChoice(ChoiceOptions(temperature=0)).of(logits)] == logits.max()


def test_tokens_are_chosen_as_often_as_they_are_probable() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    choice = TokenChoice(ChoiceOptions(top_p=0.9, seed=1))
    found = np.bincount([choice.of(np.log(probabilities).astype(np.float32)) for _ in range(4000)], minlength=4)
    np.testing.assert_allclose(found / 4000, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], atol=0.03)


def test_logits_that_are_no_numbers_choose_nothing() -> None:
    with pytest.raises(TrainerFailed, match="logits reach nan"):
        TokenChoice(ChoiceOptions()).of(np.array([1, np.nan], np.float32))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": 0}, f"max tokens 0; allowed: 1 to {MAX_TOKENS}"),
        ({"temperature": float("nan")}, "temperature nan; allowed: 0 to 2"),
        ({"top_p": 0.0}, "top_p 0; allowed: above 0"),
        ({"seed": -1}, "seed -1; allowed: 0 to"),
    ],
)
def test_wrong_option_is_refused_with_what_is_allowed(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        ChoiceOptions(**options)
