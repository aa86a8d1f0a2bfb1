"""Configs of Hugging Face models: which are taken, and what is said of the others."""

import logging
from typing import Any

import pytest

from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import InvalidConfig, Unsupported
from epochal.trainers.architectures import open_model
from tests.support.heavy import need_module
from tests.support.models.local_training import SEED, sequences_of
from tests.support.models.tiny_llama import LLAMA, spec_of
from tests.support.thinned import thinned


@pytest.fixture(autouse=True)
def transformers() -> None:
    need_module("torch")
    need_module("transformers")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            ModelSpec(architecture=Architecture.HF_LLAMA, hf=LLAMA | {"model_type": "mistral"}),
            "model.LLM.hf.model_type is mistral; allowed: a model_type that begins with llama; architecture HfAuto",
        ),
        (
            ModelSpec(architecture=Architecture.HF_DEEPSEEK, hf=LLAMA),
            "model.LLM.hf.model_type is llama; allowed: a model_type that begins with deepseek",
        ),
        (
            spec_of(model_type="nonesuch"),
            "model.LLM.hf.model_type is nonesuch; allowed: a model_type that the installed transformers knows",
        ),
        (
            spec_of(model_type="nonesuch", auto_map={"AutoConfig": "code.Config"}),
            "code that comes with a config is not run: a trainer of your own may hold such a model",
        ),
        pytest.param(
            spec_of(model_type="vit"),
            "model.LLM.hf is refused: Unrecognized .*; allowed: a causal language model",
            marks=pytest.mark.nightly,  # transformers imports each of its models for its message
        ),
        (spec_of(num_attention_heads="four"), "model.LLM.hf is not a config of llama"),
        (spec_of(hidden_size=33), "model.LLM.hf is not "),
        (spec_of(intermediate_size=0), r"model.LLM.hf is refused: parameter \S+ has the shape \[32, 0\]"),
        (spec_of(hidden_act="nosuch"), r"model\.LLM\.hf is .*nosuch.*; allowed"),
        (spec_of(pad_token_id=256), "model.LLM.hf is (refused: AssertionError|not a config of llama)"),
    ],
)
def test_config_that_cannot_be_trained_names_the_line(spec: ModelSpec, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        open_model(spec)


@thinned(
    "changed",
    [
        {"quantization_config": {"quant_method": "fp8"}, "auto_map": {"AutoConfig": "x.Y"}, "dtype": "bfloat16"},
        {"model_type": "deepseek_v2", "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
        | {"first_k_dense_replace": 1, "num_key_value_heads": 4},
        {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        {"model_type": "gpt_neo", "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ],
    ids=["stored in bf16", "deepseek", "gpt2", "attention classes"],
)
def test_configs_of_other_models_train_in_float32(changed: dict[str, Any]) -> None:
    from epochal.batching.micro_batches import Example
    from tests.support.models.local_training import ADAMW

    model = open_model(spec_of(**changed))
    learner = model.learner()
    start = model.initial_parameters(SEED)
    learner.load(start)
    loss = learner.accumulate([Example(tokens) for tokens in sequences_of(20, 7)])
    assert loss.token_count == 25
    assert 4 < loss.finite_nats() / 25 < 7
    learner.step(ADAMW, 0.01, 25)
    assert any((learner.parameters[name] != start[name]).any() for name in start)


# The forward pass


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_key_value_heads": 3}, "RuntimeError The size of tensor a .*; allowed: a config with which"),
        (
            {"model_type": "granite", "logits_scaling": 0.0},
            "with random parameters it computes numbers that are not finite",
        ),
        ({"model_type": "bert", "num_key_value_heads": None}, "sees the tokens after .*; allowed: is_decoder = true"),
    ],
)
def test_model_that_cannot_learn_is_refused_when_it_is_made(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=f"model.LLM.hf is refused: .*{message}"):
        open_model(spec_of(**changed)).initial_parameters(SEED)


def test_model_that_sees_only_what_came_before_is_made() -> None:
    assert open_model(spec_of(model_type="bert", is_decoder=True, max_position_embeddings=1)).initial_parameters(SEED)


# Keys


def test_misspelt_key_of_a_state_file_names_the_nearest_known_one() -> None:
    from epochal.trainers.first_parameters import make_first_model
    from tests.support.data.states import state_file
    from tests.support.models.tiny_llama import LLAMA_STATE

    wrong = LLAMA | {"num_hiden_layers": 7, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "torch_dtype": "bfloat16"}
    message = r"model\.LLM\.hf\.num_hiden_layers is 7; allowed: the keys .* \(did you mean `num_hidden_layers`\?\)"
    with pytest.raises(InvalidConfig, match=message) as caught:
        make_first_model(state_file(**LLAMA_STATE | {"model__LLM__hf": wrong}), 0)
    assert len(caught.value.mistakes) == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"model_type": "gpt2", "n_embd": 32, "hidden_size": 32, "max_length": 20, "id2label": {"0": "x"}},
        {"model_type": "llama", "rope_scaling": None, "architectures": ["L"], "auto_map": {}, "use_cache": True},
        {"model_type": "gemma3_text", "rope_local_base_freq": 20_000.0, "sliding_window": 8},
        {"model_type": "own-model", "anything": 1},
    ],
)
def test_keys_that_configs_have_always_had_are_known(extra: dict[str, Any]) -> None:
    from epochal.trainers.torch.config_keys import unknown_keys

    assert unknown_keys(extra) == []


def test_unknown_key_inside_a_nested_config_is_named_by_its_path() -> None:
    from epochal.trainers.torch.config_keys import unknown_keys

    found = unknown_keys({"model_type": "gemma3", "text_config": {"hiden_size": 8}})
    assert [(one.path, one.nearest) for one in found] == [("model.LLM.hf.text_config.hiden_size", "hidden_size")]


def test_warnings_of_transformers_go_to_this_program_s_log(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    open_model(spec_of(rms_norm_eps=1e-4))
    logging.getLogger("transformers.models.mamba").warning("falling back to a slow kernel")
    assert caplog.messages == ["falling back to a slow kernel"]
    assert capsys.readouterr().err == ""
