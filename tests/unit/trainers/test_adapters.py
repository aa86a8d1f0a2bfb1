"""Adapters beside a frozen base: the same numbers as `peft` itself, and the adapter's tensors alone."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput, Unsupported
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import Learner
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import GPT2, adapter_of, spec_with, write_base
from tests.support.models.local_training import ADAMW, SEED, sequences_of
from tests.support.models.tiny_llama import LLAMA, plain_loss

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # of peft itself
EXAMPLES = [Example(tokens) for tokens in sequences_of(9, 4, 30, 17)]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True, "target_modules": ("q_proj", "down_proj")},
}


@pytest.fixture(autouse=True)
def peft() -> None:
    for module in ("torch", "transformers", "peft"):
        need_module(module)


def learner_of(spec: ModelSpec, base: Path, parameters: Tensors, **options: Any) -> Learner:
    learner = open_model(spec, options=TorchOptions(device="cpu", base=base, **options)).learner()
    learner.load(parameters)
    return learner


def loss_of(learner: Learner) -> float:
    return learner.evaluate(EXAMPLES).finite_nats()


def peft_module(spec: ModelSpec, base: Path, adapter: Tensors) -> Any:
    """The adapter in `peft`'s own hands, through the folder that an export writes."""
    import json

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from epochal.trainers.torch.adapters import adapter_config
    from tests.support.models.model_files import safetensors_bytes

    folder = base.parent / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config(spec, str(base), None)))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(adapter))
    module = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(module, folder, is_trainable=True)


def peft_loss(module: Any) -> Any:
    return sum(plain_loss(module, example.tokens) for example in EXAMPLES)


@pytest.mark.parametrize("kind", KINDS)
def test_first_adapter_computes_what_its_base_computes(tmp_path: Path, kind: str) -> None:
    spec = write_base(tmp_path / "base", spec_with(**KINDS[kind]))
    first = open_model(spec, options=TorchOptions(base=tmp_path / "base")).initial_parameters(SEED)
    whole = open_model(spec.whole)
    base = whole.learner()
    base.load(whole.initial_parameters(SEED))
    assert loss_of(learner_of(spec, tmp_path / "base", first)) == pytest.approx(loss_of(base), rel=1e-6)
    other = open_model(spec, options=TorchOptions(base=tmp_path / "base")).initial_parameters(bytes(32))
    assert any(values.tobytes() != other[name].tobytes() for name, values in first.items())


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_peft(tmp_path: Path, kind: str) -> None:
    spec = write_base(tmp_path / "base", spec_with(**KINDS[kind]))
    adapter = adapter_of(spec, tmp_path / "base")
    learner = learner_of(spec, tmp_path / "base", adapter)
    module = peft_module(spec, tmp_path / "base", adapter)
    expected = peft_loss(module)
    expected.backward()
    assert learner.accumulate(EXAMPLES).finite_nats() == pytest.approx(float(expected.detach()), rel=1e-5)
    theirs = {name: one.grad.numpy() for name, one in module.named_parameters() if one.grad is not None}
    ours = dict(learner.gradient)
    assert len(theirs) == len(ours) == len(adapter)
    assert list(ours) == sorted(adapter)
    for name, values in theirs.items():
        stored = name.replace(".default", "")
        stored = stored.removesuffix(".weight") if "magnitude" in stored else stored
        np.testing.assert_allclose(ours[stored], values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("config", "dora"), [(LLAMA, False), (LLAMA, True), (GPT2, False), (GPT2, True)])
def test_merged_model_has_the_loss_of_base_and_adapter(tmp_path: Path, config: dict[str, Any], dora: bool) -> None:
    from epochal.trainers.torch.adapters import AdapterModel

    spec = write_base(tmp_path / "base", spec_with(config, use_dora=dora))
    adapter = adapter_of(spec, tmp_path / "base")
    model = open_model(spec, options=TorchOptions(base=tmp_path / "base"))
    assert isinstance(model, AdapterModel)
    merged = dict(model.merged(adapter, model.open_base()))
    assert list(merged) == sorted(open_model(spec.whole).shapes)
    whole = open_model(spec.whole).learner()
    whole.load(merged)
    together = loss_of(learner_of(spec, tmp_path / "base", adapter))
    assert loss_of(whole) == pytest.approx(together, rel=1e-5)
    assert loss_of(whole) == pytest.approx(
        float(peft_loss(peft_module(spec, tmp_path / "base", adapter)).detach()), rel=1e-5
    )


def test_step_moves_the_adapter_and_leaves_the_base(tmp_path: Path) -> None:
    spec = write_base(tmp_path / "base", spec_with(dropout=0.0), shards=3)
    first = open_model(spec).initial_parameters(SEED)
    learner = learner_of(spec, tmp_path / "base", first)
    before = loss_of(learner)
    for _ in range(30):
        found = learner.accumulate(EXAMPLES)
        learner.step(ADAMW, 0.01, found.token_count)
    trained = {name: values.copy() for name, values in learner.parameters.items()}
    assert loss_of(learner) < before - 5
    assert all(values.tobytes() != first[name].tobytes() for name, values in trained.items())
    assert all("lora_" in name for name in learner.inner_state.tensors)
    learner.load(first)
    assert loss_of(learner) == before


def test_base_in_bf16_trains_and_names_its_class(tmp_path: Path) -> None:
    spec = write_base(tmp_path / "base", spec_with(), "BF16")
    adapter = adapter_of(spec, tmp_path / "base")
    exact = learner_of(spec, tmp_path / "base", adapter)
    half = learner_of(spec, tmp_path / "base", adapter, base_precision="bf16")
    autocast = learner_of(spec, tmp_path / "base", adapter, precision="bf16")
    classes = [one.computed for one in (exact, half, autocast)]
    assert classes == ["float32/cpu", "float32-bf16/cpu", "bf16/cpu"]
    for wanted in classes:  # as a verifier that computes one's result again
        chosen = TorchOptions(device="cpu", base=tmp_path / "base").computing_in(wanted.partition("/")[0])
        assert open_model(spec, options=chosen).learner().computed == wanted
    for other in (half, autocast):
        assert loss_of(other) == pytest.approx(loss_of(exact), rel=0.01)
        other.accumulate(EXAMPLES)
        assert other.step(ADAMW, 0.01, 10) is not None
        assert all(values.dtype == np.float32 for values in other.parameters.values())


def test_class_of_a_quantised_base_is_taken_apart_for_a_verifier() -> None:
    chosen = TorchOptions(device="cuda").computing_in("bf16-nf4")
    assert (chosen.precision, chosen.base_precision, chosen.device) == ("bf16", "nf4", "cuda")


@pytest.mark.parametrize("precision", ["int8", "nf4"])
def test_quantised_base_is_refused_by_name_without_cuda(precision: str) -> None:
    from epochal.trainers.torch.availability import check_available

    with pytest.raises(InvalidInput, match=f"--base-precision {precision} on cpu needs CUDA; .*float32, bf16"):
        check_available(TorchOptions(device="cpu", base_precision=precision))


@pytest.mark.parametrize("targets", [("q_proj", "query"), ("embed_tokens",)])
def test_targets_that_match_nothing_are_named_beside_those_there_are(targets: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported, match=f"no linear layer is named '{targets[-1]}'.*all-linear, or .*o_proj, q_proj"):
        open_model(spec_with(target_modules=targets))


def wrong_base(folder: Path, how: str) -> str:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    if how == "missing":
        weights.unlink()
        return r"model.safetensors \(.* bytes\) is missing"
    if how == "partly downloaded":
        weights.write_bytes(data[: len(data) // 2])
        return "bytes: it was downloaded partly"
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return r"model.safetensors is another file \(SHA-256 [0-9a-f]{12}… instead of [0-9a-f]{12}…\)"


@pytest.mark.parametrize("how", ["missing", "partly downloaded", "another"])
def test_base_with_other_files_is_refused_before_training(tmp_path: Path, how: str) -> None:
    spec = write_base(tmp_path / "base", spec_with())
    model = open_model(spec, options=TorchOptions(base=tmp_path / "base"))
    model.learner()
    reason = wrong_base(tmp_path / "base", how)
    with pytest.raises(InvalidInput, match=reason):
        model.learner()


def test_base_of_no_repository_is_asked_for_with_its_files(tmp_path: Path) -> None:
    spec = write_base(tmp_path / "base", spec_with())
    with pytest.raises(InvalidInput, match=r"name your copy with --base DIR; it holds model.safetensors \("):
        open_model(spec).learner()
    with pytest.raises(InvalidInput, match="no such folder"):
        open_model(spec, options=TorchOptions(base=tmp_path / "elsewhere")).learner()


def test_base_of_another_commit_is_refused_by_both_commits(tmp_path: Path) -> None:
    mine, runs = "a" * 40, "b" * 40
    spec = write_base(tmp_path / mine, spec_with({**LLAMA, "_name_or_path": "org/base", "_commit_hash": runs}))
    wrong_base(tmp_path / mine, "another")
    with pytest.raises(InvalidInput, match=f"hf://org/base@{runs}.*the folder is of the commit {mine}"):
        open_model(spec, options=TorchOptions(base=tmp_path / mine)).learner()


def test_layout_is_known_without_the_base_and_loads_nothing() -> None:
    shapes = open_model(spec_with(r=2, target_modules=("q_proj",))).shapes
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    assert dict(shapes)[f"{layer}.lora_A.weight"] == (2, 32)
    assert len(shapes) == 4


def test_files_of_a_base_that_did_not_change_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochal.trainers.sources import local_model

    spec = write_base(tmp_path / "base", spec_with(), shards=2)
    monkeypatch.setattr(local_model, "hashed", lambda file: pytest.fail(f"{file.place} was read again"))
    asyncio.run(asyncio.to_thread(open_model(spec, options=TorchOptions(base=tmp_path / "base")).learner))
