"""Configs of Hugging Face models: which are taken, and what is said of the others."""

import logging
from pathlib import Path
from typing import Any

import pytest

from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import InvalidConfig, Unsupported
from epochal.trainers.architectures import open_model
from epochal.trainers.torch import remote_code
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
        (spec_of(model_type="vit"), "model.LLM.hf is refused: Unrecognized .*; allowed: a causal language model"),
        (spec_of(num_attention_heads="four"), "model.LLM.hf is not a config of llama"),
        (spec_of(hidden_size=33), "model.LLM.hf is not "),
        (spec_of(num_key_value_heads=0), "model.LLM.hf.num_key_value_heads is 0; allowed: a whole number above 0"),
        (spec_of(intermediate_size=-4), "model.LLM.hf.intermediate_size is -4; allowed: a whole number above 0"),
        (spec_of(num_hidden_layers=-1), "model.LLM.hf.num_hidden_layers is -1; allowed: a whole number above 0"),
        (spec_of(model_type="gpt2", n_layer=0), "model.LLM.hf.n_layer is 0; allowed: a whole number above 0"),
        (spec_of(rms_norm_eps=-1.0), r"model.LLM.hf.rms_norm_eps is -1\.0; allowed: a number of at least 0"),
        (
            spec_of(hidden_act="nosuch"),
            r"model\.LLM\.hf\.hidden_act is nosuch; allowed: a name that transformers knows",
        ),
        (
            spec_of(rope_scaling={"rope_type": "nosuch", "factor": 2.0}),
            r"model\.LLM\.hf\.rope_scaling\.rope_type is nosuch; allowed: a name that transformers knows",
        ),
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


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own-llama"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_that_comes_with_a_config_is_refused_unless_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(remote_code, "_IS_TRUSTED", False)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_llama.py").write_text(CODE)
    auto_map = {"AutoConfig": "own_llama.OwnConfig", "AutoModelForCausalLM": "own_llama.OwnModel"}
    own = spec_of(model_type="own-llama", auto_map=auto_map, _name_or_path=str(folder))
    with pytest.raises(Unsupported, match=r"auto_map is own_llama\.OwnConfig; .* --trust-remote-code allows"):
        open_model(own)
    remote_code.trust_remote_code()
    assert dict(open_model(own).shapes) == dict(open_model(spec_of()).shapes)
    assert open_model(own).initial_parameters(SEED).keys() == open_model(spec_of()).shapes.keys()
    with pytest.raises(Unsupported, match="_name_or_path is missing; allowed: a folder with the model"):
        open_model(spec_of(model_type="own-llama", auto_map=auto_map))
    elsewhere = {name: f"org/model--{value}" for name, value in auto_map.items()}
    for unpinned in ({"auto_map": elsewhere}, {"auto_map": auto_map, "_name_or_path": "org/model"}):
        with pytest.raises(Unsupported, match="code_revision is missing; allowed: the commit"):
            open_model(spec_of(model_type="own-llama", **unpinned))


BERT = {"model_type": "bert", "num_key_value_heads": None}


def test_model_that_sees_what_it_predicts_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"cannot be trained\n +model\.LLM\.hf\.is_decoder is false; allowed: true"):
        open_model(spec_of(**BERT))
    assert open_model(spec_of(**BERT, is_decoder=True)).shapes


def test_large_model_that_sees_ahead_fails_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from epochal.state.errors import TrainerFailed
    from epochal.trainers.torch import causality

    monkeypatch.setattr(causality, "MAX_TWIN_PARAMETERS", 1000)
    model = open_model(spec_of(**BERT, vocab_size=257))
    with pytest.raises(Unsupported, match="sees the tokens after it"):
        model.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match="sees the tokens after it"):
        model.learner().load({})


# Forward passes

MIXTRAL: dict[str, Any] = {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 2}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
    **{"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
    **{"num_key_value_heads": 4, "n_group": 2, "topk_group": 1},
}
NOT_COMPUTABLE: list[tuple[dict[str, Any], str]] = [
    ({"num_key_value_heads": 3}, "RuntimeError The size of tensor a .4. must match the size of tensor b .3."),
    ({"num_attention_heads": 2, "num_key_value_heads": 4}, "RuntimeError The size of tensor a"),
    (MIXTRAL | {"num_experts_per_tok": 4}, "RuntimeError .*k (out of|not in) range"),
    (DEEPSEEK | {"n_group": 3}, "RuntimeError shape .* is invalid for input of size"),
    ({"model_type": "gpt_neox", "rotary_pct": 3.0}, "RuntimeError (The size of tensor|.*broadcast a dimension)"),
    ({"attention_dropout": 2.0}, "RuntimeError dropout probability has to be between 0 and 1"),
]


@pytest.mark.parametrize("largest", [64_000_000, 1000], ids=["made", "too large to be made"])
@pytest.mark.parametrize(("changed", "reason"), NOT_COMPUTABLE)
def test_config_that_cannot_be_computed_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], reason: str, largest: int
) -> None:
    from epochal.trainers.torch import causality

    monkeypatch.setattr(causality, "MAX_TWIN_PARAMETERS", largest)
    with pytest.raises(Unsupported, match=f"model.LLM.hf is refused: {reason}.*; allowed: a config with which"):
        open_model(spec_of(vocab_size=256 + (largest == 1000), **changed))


@pytest.mark.parametrize("changed", [MIXTRAL, DEEPSEEK, {"max_position_embeddings": 4}])
def test_large_config_that_can_be_computed_is_taken(monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]) -> None:
    from epochal.trainers.torch import causality

    monkeypatch.setattr(causality, "MAX_TWIN_PARAMETERS", 1000)
    assert open_model(spec_of(vocab_size=258, **changed)).initial_parameters(SEED)


def test_model_whose_random_parameters_compute_nan_is_refused() -> None:
    with pytest.raises(Unsupported, match="refused: with random parameters it computes numbers that are not finite"):
        open_model(spec_of(model_type="granite", logits_scaling=0.0))


def test_parameter_without_numbers_names_the_size_that_is_zero() -> None:
    message = (
        r"a size of it is 0, as parameter \S+ has the shape \[0, .*; allowed: sizes above 0; .*: num_local_experts"
    )
    with pytest.raises(Unsupported, match=message):
        open_model(spec_of(**MIXTRAL | {"num_local_experts": 0}))


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
