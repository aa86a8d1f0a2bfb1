"""The embedded model: its loss against a naive one, its gradient against differences, its first parameters."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import NgramConfig
from epochal.trainers.ngram import model as ngram
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.ngram.model import initial_parameters, padded_tokens, parameter_shapes
from tests.support.models.local_training import SEED, TINY, bytes_of, loss_and_gradient, sequences_of

GOLDEN_INITIAL_VALUES = ["0x1.9d1c100000000p-4", "-0x1.889c000000000p-5", "-0x1.8488900000000p-2"]


def naive_loss(parameters: dict[str, Any], sequences: Sequence[np.ndarray[Any, Any]], context: int) -> float:
    """The summed loss, position by position."""
    total = 0.0
    for sequence in sequences:
        tokens = [ngram.PADDING] * context + [int(token) for token in sequence]
        for at in range(context, len(tokens)):
            x = np.concatenate([parameters["embedding"][token] for token in tokens[at - context : at]])
            h = np.tanh(x @ parameters["hidden.weight"] + parameters["hidden.bias"])
            z = h @ parameters["output.weight"] + parameters["output.bias"]
            total += float(np.log(np.exp(z).sum()) - z[tokens[at]])
    return total


def random_parameters(model: NgramConfig) -> dict[str, Any]:
    generator = np.random.default_rng(7)
    return {name: generator.normal(0, 0.5, shape) for name, shape in parameter_shapes(model).items()}


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any), st.integers(1, 4))
def test_ngram_loss_agrees_with_the_naive_one_for_ragged_sequences(lengths: list[int], context: int) -> None:
    model = NgramConfig(context=context, embedding=2, hidden=3)
    sequences, parameters = sequences_of(*lengths), random_parameters(model)
    loss, token_count, _ = loss_and_gradient(parameters, padded_tokens(sequences, context))
    assert token_count == sum(lengths)
    assert loss == pytest.approx(naive_loss(parameters, sequences, context), rel=1e-12)


def test_ngram_gradient_agrees_with_numerical_differentiation() -> None:
    padded, parameters = padded_tokens(sequences_of(7, 1, 12), TINY.context), random_parameters(TINY)
    _, token_count, gradient = loss_and_gradient(parameters, padded)
    generator, width = np.random.default_rng(1), 1e-5
    for name, array in parameters.items():
        used = array.reshape(-1)
        rows = np.unique(padded) if name == "embedding" else np.arange(len(array))
        for row in generator.choice(rows, 12):
            at = row * (array.size // len(array)) + generator.integers(array.size // len(array))
            kept = used[at]
            used[at] = kept + width
            above = loss_and_gradient(parameters, padded)[0]
            used[at] = kept - width
            below = loss_and_gradient(parameters, padded)[0]
            used[at] = kept
            slope = (above - below) / (2 * width * token_count)
            assert gradient[name].reshape(-1)[at] == pytest.approx(slope, abs=1e-8, rel=1e-6), (name, at)


def test_ngram_gradient_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    padded, parameters = padded_tokens(sequences_of(40, 3, 30), TINY.context), random_parameters(TINY)
    whole_loss, _, whole = loss_and_gradient(parameters, padded)
    for positions in (1, 7, 64):
        monkeypatch.setattr(ngram, "CHUNK_POSITIONS", positions)
        loss, _, pieces = loss_and_gradient(parameters, padded)
        assert loss == pytest.approx(whole_loss, rel=1e-12)
        for name, array in whole.items():
            np.testing.assert_allclose(pieces[name], array, rtol=1e-9, atol=1e-12)


def test_ngram_loss_of_huge_logits_stays_finite() -> None:
    parameters = random_parameters(TINY)
    parameters["output.bias"][:] = np.linspace(-1e4, 1e4, 256)
    loss, _, gradient = loss_and_gradient(parameters, padded_tokens(sequences_of(9), TINY.context))
    assert math.isfinite(loss)
    assert all(np.isfinite(array).all() for array in gradient.values())


def test_initial_parameters_are_keyed_by_the_seed_and_golden() -> None:
    tensors = initial_parameters(TINY, SEED)
    assert {name: array.shape for name, array in tensors.items()} == parameter_shapes(TINY)
    assert list(tensors) == sorted(tensors)
    assert [float(x).hex() for x in tensors["hidden.weight"][0, :3]] == GOLDEN_INITIAL_VALUES
    assert bytes_of(tensors) == bytes_of(initial_parameters(TINY, SEED))
    assert bytes_of(tensors)["embedding"] != bytes_of(initial_parameters(TINY, bytes(32)))["embedding"]
    assert abs(float(tensors["embedding"].mean())) < 0.2
    assert float(tensors["embedding"].std()) == pytest.approx(1, abs=0.1)


def test_initial_parameters_of_several_blocks_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_INIT_BLOCK_VALUES", 64)
    values = initial_parameters(TINY, SEED)["embedding"]
    assert len(np.unique(values)) == values.size


def test_ngram_computes_with_one_blas_thread_and_leaves_the_others() -> None:
    def threads() -> set[int]:
        # NumPy's own: another package in this process may have brought a second one
        return {pool["num_threads"] for pool in threadpool_info() if "numpy" in pool["filepath"]}

    seen: list[set[int]] = []
    learner = NgramModel(TINY).learner()
    learner.load(initial_parameters(TINY, SEED))
    with threadpool_limits(2, user_api="blas"):
        learner.accumulate([Example(sequences_of(9)[0])], lambda: seen.append(threads()))
        assert threads() == {2}
    assert seen
    assert all(found == {1} for found in seen)
