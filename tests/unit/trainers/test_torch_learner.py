"""The learner of transformers' models: the loss is transformers' own, however rows are cut, padded and packed."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import Learner, Model
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.heavy import need_module, need_program
from tests.support.models.local_training import ADAMW, SEED, sequences_of
from tests.support.models.tiny_llama import LLAMA_SPEC, plain_llama, plain_loss, spec_of
from tests.support.thinned import thinned

LENGTHS = (9, 4, 30, 1, 17, 20)
EXAMPLES = [Example(tokens) for tokens in sequences_of(*LENGTHS)]
PREDICTED = sum(LENGTHS) - len(LENGTHS)


@pytest.fixture(scope="module")
def model() -> Model:
    need_module("torch")
    need_module("transformers")
    return open_model(LLAMA_SPEC)


@pytest.fixture(scope="module")
def start(model: Model) -> Tensors:
    return model.initial_parameters(SEED)


def loaded(start: Tensors, **options: Any) -> Learner:
    learner = open_model(LLAMA_SPEC, options=TorchOptions(device="cpu", **options)).learner()
    learner.load(start)
    return learner


def gradient_of(learner: Learner) -> Tensors:
    return {name: array.copy() for name, array in learner.gradient.items()}


def alone(start: Tensors, examples: list[Example]) -> tuple[float, Tensors]:
    """The summed loss and its gradient by transformers alone, one document after the other."""
    module = plain_llama(start)
    nats = 0.0
    for example in examples:
        if example.tokens.size > 1:
            loss = plain_loss(module, example.tokens, example.labels)
            loss.backward()
            nats += float(loss.detach())
    return nats, {name: one.grad.numpy() for name, one in sorted(module.named_parameters())}


def assert_close(found: Tensors, wanted: Tensors) -> None:
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_parameters_are_the_module_s_by_name_and_a_function_of_the_seed(model: Model, start: Tensors) -> None:
    module = plain_llama(start)
    assert dict(model.shapes) == {name: tuple(one.shape) for name, one in sorted(module.named_parameters())}
    assert {name: array.shape for name, array in start.items()} == dict(model.shapes)
    assert {array.dtype for array in start.values()} == {np.dtype(np.float32)}
    again, other = model.initial_parameters(SEED), model.initial_parameters(bytes(32))
    assert all(np.array_equal(again[name], start[name]) for name in start)
    assert not np.array_equal(other["lm_head.weight"], start["lm_head.weight"])


def test_tied_weights_are_one_parameter() -> None:
    need_module("transformers")
    tied = open_model(spec_of(tie_word_embeddings=True))
    assert "lm_head.weight" not in tied.shapes
    learner = tied.learner()
    learner.load(tied.initial_parameters(SEED))
    assert learner.evaluate(EXAMPLES).token_count == PREDICTED


@thinned("rows", [None, 1, 2, 3])
def test_loss_and_gradient_are_those_of_the_documents_alone(start: Tensors, rows: int | None) -> None:
    learner = loaded(start, micro_batch=rows)
    found = learner.accumulate(EXAMPLES)
    nats, gradient = alone(start, EXAMPLES)
    assert float(found.nats) == pytest.approx(nats, rel=1e-5)
    assert found.token_count == PREDICTED
    assert_close(gradient_of(learner), gradient)


def test_padding_changes_nothing(start: Tensors) -> None:
    learner = loaded(start)
    long = Example(sequences_of(100)[0])
    apart = sum(float(learner.evaluate([example]).nats) for example in (EXAMPLES[0], long))
    assert float(learner.evaluate([EXAMPLES[0], long]).nats) == pytest.approx(apart, rel=1e-5)


def test_labels_are_predicted_and_ignored_ones_are_not(start: Tensors) -> None:
    tokens = sequences_of(30)[0]
    labels = tokens.astype(np.int64)
    labels[::3] = IGNORED_LABEL
    labels[5] = 7
    learner = loaded(start)
    found = learner.accumulate([Example(tokens, labels)])
    nats, gradient = alone(start, [Example(tokens, labels)])
    assert found.token_count == 20
    assert float(found.nats) == pytest.approx(nats, rel=1e-5)
    assert_close(gradient_of(learner), gradient)


def test_position_ids_of_the_data_are_the_model_s(start: Tensors) -> None:
    import torch

    tokens = sequences_of(12)[0]
    learner = loaded(start)
    module = plain_llama(start)
    for positions in (np.arange(12), np.arange(12) + 40, np.arange(12) * 3):
        found = learner.evaluate([Example(tokens, None, positions), EXAMPLES[2]])
        ids, mask = torch.tensor([tokens.tolist()]), torch.ones(1, 12)
        given = module(input_ids=ids, attention_mask=mask, position_ids=torch.tensor([positions.tolist()]))
        alone = torch.nn.functional.cross_entropy(given.logits[0, :-1], ids[0, 1:], reduction="sum").detach()
        wanted = float(alone) + float(learner.evaluate(EXAMPLES[2:3]).nats)
        assert float(found.nats) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.nightly
def test_sliding_window_is_transformers_own() -> None:
    need_module("transformers")
    from transformers import AutoModelForCausalLM, MistralConfig

    hf = {"model_type": "mistral", "sliding_window": 4}
    mistral = open_model(spec_of(**hf))
    start = mistral.initial_parameters(SEED)
    learner = mistral.learner()
    learner.load(start)
    import torch

    values = {key: value for key, value in (spec_of(**hf).hf or {}).items() if key != "model_type"}
    module = AutoModelForCausalLM.from_config(MistralConfig(**values), dtype=torch.float32)
    with torch.no_grad():
        for name, one in module.named_parameters():
            one.copy_(torch.tensor(start[name]))
    wanted = sum(float(plain_loss(module, one.tokens).detach()) for one in EXAMPLES if one.tokens.size > 1)
    assert float(learner.evaluate(EXAMPLES).nats) == pytest.approx(wanted, rel=1e-5)


def test_bf16_is_near_float32_and_parameters_stay_float32(start: Tensors) -> None:
    exact, half = loaded(start), loaded(start, precision="bf16")
    wanted = float(exact.accumulate(EXAMPLES).nats)
    assert float(half.accumulate(EXAMPLES).nats) == pytest.approx(wanted, rel=1e-2)
    half.step(ADAMW, 0.01, PREDICTED)
    assert {array.dtype for array in half.parameters.values()} == {np.dtype(np.float32)}
    assert {array.dtype for array in half.inner_state.tensors.values()} == {np.dtype(np.float32)}


def test_weight_decay_acts_on_matrices_only(start: Tensors) -> None:
    decaying = ADAMW.model_copy(update={"weight_decay": 0.5})
    ends = []
    for optimizer in (ADAMW.model_copy(update={"weight_decay": 0.0}), decaying):
        learner = loaded(start)
        learner.accumulate(EXAMPLES)
        learner.step(optimizer, 0.1, PREDICTED)
        ends.append({name: array.copy() for name, array in learner.parameters.items()})
    for name, array in start.items():
        decayed = ends[0][name] - (0.1 * 0.5 * array if array.ndim > 1 else 0)
        np.testing.assert_allclose(ends[1][name], decayed, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example(np.array([1, 256], np.uint16)), "token 256; the model knows tokens from 0 to 255"),
        (Example(np.array([1, 2], np.uint16), np.array([1, -3])), "label -3; the model knows tokens"),
        (Example(np.array([1, 2], np.uint16), np.array([1, 256])), "label 256; the model knows tokens"),
        (Example(np.zeros(129, np.uint16)), "a document of 129 tokens; the model's config has max_position_embeddings"),
        (Example(np.zeros(2, np.uint16), None, np.array([0, 128])), "position ids from 0 to 128"),
    ],
)
def test_example_that_the_model_cannot_take_is_refused(start: Tensors, example: Example, message: str) -> None:
    learner = loaded(start)
    with pytest.raises(TrainerFailed, match=message):
        learner.accumulate([*EXAMPLES, example])
    assert not any(array.any() for array in learner.gradient.values())


class SmallDevice:
    """Makes Llama run out of memory for micro-batches of more rows than fit, and counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch
        from transformers import LlamaForCausalLM

        self.fitting = 1000
        self.rows: list[int] = []
        forward = LlamaForCausalLM.forward

        def limited(module: Any, input_ids: Any, **named: Any) -> Any:
            self.rows.append(len(input_ids))
            if len(input_ids) > self.fitting:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(input_ids)} GiB")
            return forward(module, input_ids, **named)

        monkeypatch.setattr(LlamaForCausalLM, "forward", limited)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SmallDevice:
    need_module("transformers")
    return SmallDevice(monkeypatch)


def test_out_of_memory_halves_repeats_and_remembers(
    start: Tensors, device: SmallDevice, caplog: pytest.LogCaptureFixture
) -> None:
    examples = [Example(tokens) for tokens in sequences_of(*[16] * 8)]
    wanted = loaded(start)
    first, second = wanted.accumulate(examples[:4]), wanted.accumulate(examples)
    learner = loaded(start)
    device.rows.clear()
    assert float(learner.accumulate(examples[:4]).nats) == pytest.approx(float(first.nats), rel=1e-5)
    device.fitting = 2
    with caplog.at_level(logging.WARNING):
        assert float(learner.accumulate(examples).nats) == pytest.approx(float(second.nats), rel=1e-5)
    assert device.rows == [4, 8, 4, 2, 2, 2, 2, 2, 2], "the first call's gradient was computed again, too"
    assert [record.rows for record in caplog.records if record.message == "micro_batch_halved"] == [4, 2]  # type: ignore[attr-defined]
    assert_close(gradient_of(learner), gradient_of(wanted))
    device.rows.clear()
    learner.evaluate(examples)
    assert device.rows == [2] * 4, "what fitted is remembered"


def test_out_of_memory_with_one_row_is_said_and_the_learner_stays_usable(start: Tensors, device: SmallDevice) -> None:
    learner = loaded(start, micro_batch=4)
    device.fitting = 0
    with pytest.raises(TrainerFailed, match="out of memory on cpu with a micro-batch of one row of 32 places; use"):
        learner.accumulate(EXAMPLES)
    device.fitting = 9
    learner.load(start)
    assert float(learner.accumulate(EXAMPLES).nats) == pytest.approx(alone(start, EXAMPLES)[0], rel=1e-5)


def test_device_that_vanishes_mid_step_is_said_and_comes_back(start: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    learner = loaded(start)
    wanted = float(learner.accumulate(EXAMPLES).nats)

    def vanished(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: the device is gone\nCUDA kernel errors might be reported later")

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.AdamW, "step", vanished)
        with pytest.raises(TrainerFailed, match=r"^torch failed on cpu: CUDA error: the device is gone$"):
            learner.step(ADAMW, 0.1, PREDICTED)
    learner.load(start)
    assert float(learner.accumulate(EXAMPLES).nats) == pytest.approx(wanted, rel=1e-6)


def test_failure_of_the_models_own_code_is_said(start: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = loaded(start)

    def broken(*_: Any, **__: Any) -> None:
        raise IndexError("expert 9 of 8")

    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "forward", broken)
    with pytest.raises(TrainerFailed, match="the model's own code failed: IndexError expert 9 of 8"):
        learner.accumulate(EXAMPLES)
    monkeypatch.undo()
    learner.discard()
    assert learner.accumulate(EXAMPLES).token_count == PREDICTED


def test_proceed_is_called_before_each_micro_batch_and_may_raise(start: Tensors) -> None:
    learner = loaded(start, micro_batch=1)
    calls: list[int] = []

    def proceed() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        learner.evaluate(EXAMPLES, proceed)
    assert len(calls) == 3


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # within torch.compile
def test_compiled_model_has_the_same_loss_and_gradient(start: Tensors) -> None:
    need_module("torch")
    need_program("g++")
    from epochal.trainers.torch.availability import check_available

    check_available(TorchOptions(device="cpu", compiles=True))
    learner = loaded(start, compiles=True)
    assert float(learner.accumulate(EXAMPLES[:1]).nats) == pytest.approx(alone(start, EXAMPLES[:1])[0], rel=1e-5)
    assert_close(gradient_of(learner), alone(start, EXAMPLES[:1])[1])


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_compiler_that_this_machine_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    import torch
    from torch._inductor import config

    from epochal.trainers.torch.availability import check_available

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # nothing is compiled there yet
    monkeypatch.setattr(config.cpp, "cxx", (None, "/nowhere/g++"))
    torch._dynamo.reset()
    with pytest.raises(
        InvalidInput, match="--compile: torch compiles nothing for cpu on this machine: InvalidCxxCompiler"
    ):
        check_available(TorchOptions(device="cpu", compiles=True))


def test_nothing_in_a_local_step_waits_for_the_device(start: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, whatever reads a tensor's value from Python waits for all the work before it."""
    import torch

    positions = np.arange(30) + 5
    examples = [*EXAMPLES, Example(sequences_of(30)[0], None, positions)]
    learner = loaded(start, micro_batch=2)
    wanted = float(learner.accumulate(examples).nats)
    learner.step(ADAMW, 0.01, PREDICTED)
    learner.load(start)

    def waits(*_: Any, **__: Any) -> None:
        raise AssertionError("a tensor's value was read")

    with monkeypatch.context() as patched:
        for name in ("__bool__", "__float__", "__int__", "item", "tolist", "cpu", "numpy", "nonzero"):
            patched.setattr(torch.Tensor, name, waits)
        losses = [learner.accumulate(examples) for _ in range(2)]
        norm = learner.step(ADAMW, 0.01, 2 * PREDICTED)
    assert [float(loss.nats) for loss in losses] == pytest.approx([wanted, wanted], rel=1e-5)
    assert norm is not None
    assert float(norm) > 0


@pytest.mark.nightly
def test_bias_that_chooses_experts_is_carried_and_no_step_changes_it() -> None:
    need_module("transformers")
    shape = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1}
    hf = {"model_type": "deepseek_v3", "first_k_dense_replace": 1, "num_key_value_heads": 4, "topk_group": 1}
    model = open_model(spec_of(**hf | shape | experts))
    start = model.initial_parameters(SEED)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert start[name].tolist() == [0.0] * 4
    start[name] = np.array([1.5, 0.0, -1.0, 0.25], np.float32)
    learner = model.learner()
    learner.load(start)
    loss = learner.accumulate(EXAMPLES)
    learner.step(ADAMW, 0.01, loss.token_count)
    assert learner.parameters[name].tolist() == start[name].tolist()
    assert (learner.parameters["lm_head.weight"] != start["lm_head.weight"]).any()
