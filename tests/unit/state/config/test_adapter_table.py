"""`[model.LLM.adapter]`: what is read, and what is refused with what is allowed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from epochal.state.config.adapter_table import ALL_LINEAR, BaseFile, Lora
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import parse_state
from epochal.state.config.support import ensure_supported
from epochal.state.errors import InvalidConfig, Unsupported
from epochal.state.model.first_model import model_document, spec_of_document
from tests.support.data.states import state_file, state_text

BASE = {"model__LLM__architecture": "HfAuto", "model__LLM__checkpoint": {"Hub": {"repo_id": "org/base"}}}
FILES = {"model.safetensors": BaseFile(size_bytes=8, sha256="a" * 64)}


def adapter_in(**lora: Any) -> Any:
    return state_file(**BASE, model__LLM__adapter={"Lora": lora}).model.LLM.adapter


def test_table_is_read_with_its_defaults_and_written_as_before() -> None:
    assert adapter_in() == Lora(r=16, alpha=32.0, dropout=0.0, target_modules=ALL_LINEAR)
    assert adapter_in(target_modules="all-linear").target_modules == ALL_LINEAR
    state = state_file(**BASE, model__LLM__adapter={"Lora": {"r": 4, "target_modules": ["q_proj"]}})
    assert state.to_plain()["model"]["LLM"]["adapter"]["Lora"]["target_modules"] == ["q_proj"]
    assert state_file(**BASE).model.LLM.adapter is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model__LLM__adapter": {"AdaLora": {"r": 4}}}, r"AdaLora.*allowed: exactly one of \{ Lora = … \}"),
        ({"model__LLM__adapter": {"Lora": {"init_lora_weights": "pissa"}}}, "Lora.init_lora_weights is an unknown key"),
        ({"model__LLM__adapter": {"Lora": {"bias": "all"}}}, "Lora.bias is an unknown key"),
        ({"model__LLM__adapter": {"Lora": {"r": 0}}}, "Lora.r .*from 1 to 1024"),
        ({"model__LLM__adapter": {"Lora": {"dropout": 1.0}}}, "Lora.dropout .*from 0 to below 1"),
        ({"model__LLM__adapter": {"Lora": {"target_modules": []}}}, '"all-linear", or a list of names'),
        ({"model__LLM__adapter": {"Lora": {"target_modules": "q.*"}}}, '"all-linear", or a list of names'),
        ({"model__LLM__checkpoint": "Ephemeral"}, 'model.LLM.checkpoint is "Ephemeral"; it names the base'),
        ({"model__LLM__architecture": "EpochalNgram"}, "an `Hf…` one may have it"),
        ({"access__genesis": "members"}, "the operator says which files the base has"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_allowed(changed: dict[str, Any], reason: str) -> None:
    text = state_text(**{**BASE, "model__LLM__adapter": {"Lora": {}}, **changed})
    with pytest.raises(InvalidConfig, match=reason):
        parse_state(text, "state.toml")


def test_dropout_of_an_adapter_does_not_go_with_verification() -> None:
    state = state_file(
        **BASE, model__LLM__adapter={"Lora": {"dropout": 0.1}}, verify={"percent": 5}, merge__inner_state="reset"
    )
    with pytest.raises(Unsupported) as refused:
        ensure_supported(state, "state.toml", [Architecture.HF_AUTO])
    assert [mistake.path for mistake in refused.value.mistakes] == ["model.LLM.adapter.Lora.dropout"]


def spec_of(lora: Lora | None, files: Any, config: Any) -> ModelSpec:
    return ModelSpec(architecture=Architecture.HF_AUTO, hf=config, adapter=lora, base=files)


specs = st.builds(
    spec_of,
    st.sampled_from([None, Lora(), Lora(r=8)]),
    st.sampled_from([None, FILES]),
    st.sampled_from([None, {"model_type": "llama"}, {"model_type": "gpt2"}]),
)


@pytest.mark.parametrize("name", ["../../home/me/.ssh/id", "/etc/passwd", ".hidden", "a/b.safetensors", ""])
def test_file_outside_a_base_is_no_name_in_a_model_document(name: str) -> None:
    with pytest.raises(ValidationError):
        ModelSpec.model_validate({"architecture": "HfAuto", "base": {name: {"size_bytes": 1, "sha256": "a" * 64}}})


@given(specs, specs)
def test_model_completes_what_the_file_says_and_says_all(found: ModelSpec, said: ModelSpec) -> None:
    has_all = found.hf is not None and (found.adapter is None) == (found.base is None)
    agrees = found.adapter == said.adapter and said.hf in (None, found.hf)
    files_agree = said.base == found.base or (said.base is None and found.adapter is not None)
    assert found.completes(said) == (has_all and agrees and files_agree)


@given(specs)
def test_model_document_keeps_adapter_and_files(spec: ModelSpec) -> None:
    assert spec_of_document(model_document(spec).decode()) == spec
    assert spec.whole == spec_of(None, None, spec.hf)
