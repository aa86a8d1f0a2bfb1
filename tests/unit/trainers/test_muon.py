"""Muon beside torch's own: which tensors it moves, by how much, and what is kept from step to step."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import InnerOptimizer, Muon
from epochal.state.errors import Unsupported
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.state.wire import parse_document
from epochal.trainers.architectures import TORCH, open_model
from epochal.trainers.learner import Learner
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.muon import muon_step, orthogonal
from epochal.trainers.registry import check_mesh_trains
from epochal.trainers.remote.service_messages import SessionRequest
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import adapter_of, spec_with, write_base
from tests.support.models.local_training import ADAMW, MUON, SEED, sequences_of
from tests.support.models.tiny_llama import LLAMA_SPEC, LLAMA_STATE, plain_llama, plain_loss

RATE = 0.01
SETTINGS = Muon(momentum=0.9, weight_decay=0.1, ns_steps=4, adamw_lr_ratio=0.5, betas=(0.8, 0.9), eps=1e-3)
EXAMPLES = [Example(tokens) for tokens in sequences_of(24, 24, 24)]
BF16 = 0.06
"""Distance after a few steps between torch's own class, which iterates in bfloat16, and one that does not."""
APART = ("model.embed_tokens.weight", "lm_head.weight")


def distance(found: Float32Array, wanted: Float32Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def learner_of(start: Tensors, **options: object) -> Learner:
    learner = open_model(LLAMA_SPEC, options=TorchOptions(device="cpu", **options)).learner()  # type: ignore[arg-type]
    learner.load(start)
    return learner


def trained(learner: Learner, settings: InnerOptimizer, steps: int = 3) -> Tensors:
    for _ in range(steps):
        learner.step(settings, RATE, learner.accumulate(EXAMPLES).token_count)
    return {name: values.copy() for name, values in learner.parameters.items()}


@pytest.fixture
def start() -> Tensors:
    need_module("torch")
    need_module("transformers")
    return open_model(LLAMA_SPEC).initial_parameters(SEED)


def test_steps_are_those_of_a_bare_loop_with_torch_s_muon_and_adamw(start: Tensors) -> None:
    import torch

    module = plain_llama(start)
    named = dict(module.named_parameters())
    hidden = [one for name, one in named.items() if one.ndim == 2 and name not in APART]
    groups = [
        {"params": [named[name] for name in APART], "weight_decay": 0.1},
        {"params": [one for one in named.values() if one.ndim == 1], "weight_decay": 0.0},
    ]
    muon = torch.optim.Muon(hidden, lr=RATE, momentum=0.9, weight_decay=0.1, ns_steps=4, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(groups, lr=RATE / 2, betas=(0.8, 0.9), eps=1e-3)
    for _ in range(3):
        module.zero_grad()
        (sum(plain_loss(module, example.tokens) for example in EXAMPLES) / (3 * 23)).backward()
        muon.step()
        adamw.step()
    found = trained(learner_of(start), SETTINGS)
    for name, one in named.items():
        moved = one.detach().numpy() - start[name]
        assert np.abs(moved).max() > RATE / 10, name
        assert distance(found[name] - start[name], moved) < BF16, name


def test_a_hidden_matrix_has_one_moment_and_every_other_tensor_two(start: Tensors) -> None:
    learner = learner_of(start)
    trained(learner, MUON, 1)
    both = {name for name, values in start.items() if values.ndim == 1} | set(APART)
    assert set(learner.inner_state.tensors) == {f"first/{name}" for name in start} | {f"second/{name}" for name in both}


def test_one_machine_repeats_its_steps_bit_for_bit(start: Tensors) -> None:
    found = [trained(learner_of(start), MUON) for _ in range(2)]
    assert all(values.tobytes() == found[1][name].tobytes() for name, values in found[0].items())


def test_matrices_of_an_adapter_are_hidden_ones(tmp_path: Path) -> None:
    for module in ("torch", "transformers", "peft"):
        need_module(module)
    spec = write_base(tmp_path / "base", spec_with())
    first = adapter_of(spec, tmp_path / "base")
    learner = open_model(spec, options=TorchOptions(device="cpu", base=tmp_path / "base")).learner()
    learner.load(first)
    found = trained(learner, Muon(momentum=0.95, weight_decay=0.0), 1)
    assert not any(name.startswith("second/") for name in learner.inner_state.tensors)
    for name, values in found.items():
        spread = np.linalg.svd(values - first[name], compute_uv=False) / (0.2 * RATE * math.sqrt(max(values.shape)))
        assert 0.3 < spread.min() < spread.max() < 1.5, name


@pytest.mark.parametrize("kind", ["numpy", "float32", "bfloat16"])
def test_step_is_that_of_torch_s_own_class(kind: str) -> None:
    need_module("torch")
    import torch

    dtype = None if kind == "numpy" else getattr(torch, kind)
    random = np.random.default_rng(3)
    for shape in ((24, 10), (10, 24), (7, 7)):
        ours = random.standard_normal(shape).astype(np.float32)
        theirs, momentum, before = torch.nn.Parameter(torch.tensor(ours)), np.zeros_like(ours), ours.copy()
        given = (ours, momentum) if dtype is None else (torch.from_numpy(ours), torch.from_numpy(momentum))
        optimizer = torch.optim.Muon([theirs], lr=RATE, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
        for _ in range(3):
            slope = random.standard_normal(shape).astype(np.float32)
            theirs.grad = torch.tensor(slope)
            optimizer.step()
            turned = slope if dtype is None else torch.from_numpy(slope)
            muon_step(given[0], turned, given[1], Muon(momentum=0.9, weight_decay=0.1), RATE, dtype)
        assert distance(ours - before, theirs.detach().numpy() - before) < BF16
        np.testing.assert_allclose(momentum, optimizer.state[theirs]["momentum_buffer"].numpy(), rtol=1e-5, atol=1e-6)


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_orthogonal_keeps_singular_vectors_and_evens_singular_values(
    rows: int, columns: int, scale: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    size = min(rows, columns)
    left, right = (np.linalg.qr(random.standard_normal((count, size)))[0] for count in (rows, columns))
    values = random.uniform(0.2, 1.0, size)
    found = orthogonal((scale * (left * values) @ right.T).astype(np.float32), 5)
    inside = left.T @ found @ right
    np.testing.assert_allclose(inside, np.diag(np.diag(inside)), atol=1e-3)
    assert 0.6 < np.diag(inside).min() <= np.diag(inside).max() < 1.3


def test_a_gradient_of_zeros_moves_nothing() -> None:
    matrix, zeros = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    muon_step(matrix, zeros, zeros.copy(), Muon(momentum=0.9, weight_decay=0.0), RATE)
    assert (matrix == 1).all()


def test_mesh_of_torch_is_refused_by_name() -> None:
    state = state_file(**LLAMA_STATE, model__LLM__optimizer={"Muon": {"momentum": 0.95, "weight_decay": 0.0}})
    with pytest.raises(Unsupported, match=r"model\.LLM\.optimizer.*Muon.*AdamW or Dummy with a mesh"):
        check_mesh_trains(MeshOptions("data=2", 2, 2, trainer=TORCH), state, LLAMA_SPEC)


@pytest.mark.parametrize("optimizer", [ADAMW, MUON])
def test_a_training_service_gets_the_optimizer_that_was_meant(optimizer: InnerOptimizer) -> None:
    request = SessionRequest(LLAMA_SPEC, optimizer)
    assert parse_document(SessionRequest, TypeAdapter(SessionRequest).dump_json(request)) == request
