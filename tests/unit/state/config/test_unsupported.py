"""What this version does not support is refused by name, with the line to change."""

from typing import Any

import pytest

from epochal.state.config import support as config
from epochal.state.config.data_location import MAX_FILES
from epochal.state.config.model_table import Architecture
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidConfig, Unsupported
from tests.support.data.states import state_file

HTTP = {"token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}
NUMBERED = {"url_template": "https://h/{}", "start_index": 0, "n_left_pad_zeros": 0, "num_files": 1}
DISTRO = {"compression_decay": 0.999, "compression_topk": 8, "compression_chunk": 64, "quantize_1bit": True}


def ensure_supported(state: StateFile, source: str) -> None:
    config.ensure_supported(state, source, {Architecture.EPOCHAL_NGRAM})


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("run_id", "a/b", "letters"),
        ("run_id", "..", "letters"),
        ("run_id", "a\x00b", "letters"),
        *(
            ("model.LLM.architecture", name, '`architecture = "EpochalNgram"`')
            for name in ("HfLlama", "HfDeepseek", "HfAuto", "Torchtitan")
        ),
        ("model.LLM.optimizer", {"Distro": DISTRO}, "`optimizer = { AdamW = "),
    ],
)
def test_unsupported_value_is_refused_with_the_line_to_change(path: str, value: Any, line: str) -> None:
    state = state_file(**{path.replace(".", "__"): value})
    with pytest.raises(Unsupported) as caught:
        ensure_supported(state, "state.toml")
    (mistake,) = caught.value.mistakes
    assert mistake.path == path
    assert mistake.allowed.startswith(line)


def test_more_numbered_files_than_are_read_are_refused_by_name() -> None:
    location = {"NumberedFiles": {**NUMBERED, "num_files": MAX_FILES + 1}}
    state = state_file(model__LLM__data_location={"Http": {**HTTP, "location": location}})
    with pytest.raises(Unsupported, match="num_files"):
        ensure_supported(state, "state.toml")


def test_everything_unsupported_is_named_at_once() -> None:
    state = state_file(
        config__verification_percent=5,
        merge__local_steps=101,
        merge__error_feedback=True,
        merge__delay=1,
        model__LLM__architecture="HfAuto",
        model__LLM__hf={"model_type": "gpt2", "attn_pdrop": 0.1, "resid_pdrop": 0.0, "text": {"dropout": 1}},
        model__LLM__optimizer={"Distro": DISTRO},
    )
    with pytest.raises(Unsupported) as caught:
        ensure_supported(state, "runs/state.toml")
    assert str(caught.value).startswith("runs/state.toml: not supported yet\n")
    assert [mistake.path for mistake in caught.value.mistakes] == [
        "merge.local_steps",
        "merge.error_feedback",
        "merge.delay",
        "model.LLM.hf.attn_pdrop",
        "model.LLM.hf.text.dropout",
        "model.LLM.architecture",
        "model.LLM.optimizer",
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model__LLM__cold_start_warmup_steps", 1),
        ("model__LLM__checkpoint", {"Local": "start.safetensors"}),
        *(("model__LLM__checkpoint", {name: {"repo_id": "a/b"}}) for name in ("Dummy", "Hub", "P2P")),
        *(("model__LLM__checkpoint", {name: {"bucket": "b"}}) for name in ("Gcs", "P2PGcs", "S3")),
        ("model__LLM__optimizer", "Dummy"),
        ("model__LLM__data_location", "Dummy"),
        ("model__LLM__data_location", {"Local": "data"}),
        ("model__LLM__data_location", {"Server": "127.0.0.1:9000"}),
        *(
            ("model__LLM__data_location", {"Http": {**HTTP, "location": location}})
            for location in (
                {"SingleUrl": "https://h/a.bin"},
                {"NumberedFiles": NUMBERED},
                {"Urls": ["https://h/a.bin", "https://h/b.bin"]},
                {"Gcp": {"bucket_name": "b", "filter_directory": ""}},
                {"S3": {"bucket_name": "b", "endpoint": "http://127.0.0.1:9000"}},
                {"Azure": {"account_name": "a", "container_name": "c", "filter_directory": "d"}},
            )
        ),
        ("run_id", "my-run_2.1"),
    ],
)
def test_supported_value_is_not_refused(path: str, value: Any) -> None:
    ensure_supported(state_file(**{path: value}), "state.toml")


def test_finetuning_on_made_up_data_is_refused_with_the_line() -> None:
    state = state_file(model__LLM__data_type="Finetuning", model__LLM__data_location="Dummy")
    with pytest.raises(Unsupported) as caught:
        ensure_supported(state, "state.toml")
    (mistake,) = caught.value.mistakes
    assert mistake.path == "model.LLM.data_location"
    assert mistake.allowed.startswith('`data_location = { Local = "folder of JSON lines" }`')


IMAGES = {
    "model__LLM__architecture": "Custom",
    "model__LLM__custom": {"trainer": "shapes"},
    "model__LLM__data_type": "Multimodal",
}


def test_samples_with_images_are_read_from_files_or_a_data_server() -> None:
    with pytest.raises(Unsupported) as caught:
        config.ensure_supported(
            state_file(**IMAGES, model__LLM__data_location="Dummy"), "state.toml", {Architecture.CUSTOM}
        )
    (mistake,) = caught.value.mistakes
    assert mistake.path == "model.LLM.data_location"
    assert mistake.allowed.endswith("or `Http` or `Server` of such files")
    for location in ({"Local": "data"}, {"Server": "127.0.0.1:9"}):
        config.ensure_supported(
            state_file(**IMAGES, model__LLM__data_location=location), "state.toml", {Architecture.CUSTOM}
        )


def test_images_for_a_language_model_are_refused_with_the_line() -> None:
    with pytest.raises(InvalidConfig, match=r'data_type is "Multimodal"; allowed: "Pretraining" or "Fine'):
        state_file(model__LLM__data_type="Multimodal")


def test_finetuning_with_packing_is_supported() -> None:
    packing = {"method": "encoder", "pool_size": 9, "oversized": "split", "task_encoder": "my.encoder"}
    for location in (
        {"Local": "data"},
        {"Preprocessed": "data"},
        {"WeightedHttp": "mix.json"},
        {"Server": "a.example:1"},
    ):
        state = state_file(model__LLM__data_type="Finetuning", model__LLM__data_location=location, packing=packing)
        ensure_supported(state, "state.toml")
        assert state.packing.task_encoder == "my.encoder"


HF = {Architecture.HF_LLAMA, Architecture.EPOCHAL_NGRAM}
HUB = {"Hub": {"repo_id": "a/b"}}
LLAMA = {"model_type": "llama"}


@pytest.mark.parametrize(
    "overrides",
    [
        {"model__LLM__hf": LLAMA},
        {"model__LLM__hf": LLAMA, "access__genesis": "members"},
        {"model__LLM__checkpoint": HUB},
        {"model__LLM__checkpoint": "Dummy"},
        {"model__LLM__checkpoint": "Dummy", "access__genesis": "members"},
    ],
)
def test_hugging_face_model_whose_config_can_be_known_is_supported(overrides: dict[str, Any]) -> None:
    config.ensure_supported(state_file(model__LLM__architecture="HfLlama", **overrides), "state.toml", HF)


@pytest.mark.parametrize("overrides", [{}, {"model__LLM__checkpoint": HUB, "access__genesis": "members"}])
def test_hugging_face_model_without_a_config_is_refused_by_name(overrides: dict[str, Any]) -> None:
    with pytest.raises(
        Unsupported, match=r"model\.LLM\.hf is missing; allowed: the keys of the model's `config\.json`"
    ):
        config.ensure_supported(state_file(model__LLM__architecture="HfLlama", **overrides), "state.toml", HF)


def test_what_cannot_be_repeated_is_supported_where_nothing_is_verified() -> None:
    ensure_supported(state_file(merge__local_steps=101, merge__error_feedback=True, merge__delay=1), "state.toml")
    for inner_state in ("keep", "reset"):
        ensure_supported(state_file(verify={"percent": 10}, merge__inner_state=inner_state), "state.toml")


@pytest.mark.parametrize(
    ("overrides", "places"),
    [
        ({}, ["merge.inner_state"]),
        ({"verify": {}}, []),
        ({"verify": {"by": "scores"}}, ["merge.inner_state"]),
        ({"merge__inner_state": "reset"}, []),
        (
            {"merge__inner_state": "reset", "merge__error_feedback": True, "merge__delay": 1},
            ["merge.error_feedback", "merge.delay"],
        ),
        (
            {"model__LLM__architecture": "HfAuto", "model__LLM__hf": {"model_type": "gpt2", "attn_pdrop": 0.1}},
            ["merge.inner_state", "model.LLM.hf.attn_pdrop"],
        ),
    ],
)
def test_lines_for_which_nobody_computes_results_again(overrides: dict[str, Any], places: list[str]) -> None:
    state = state_file(**overrides)
    assert [mistake.path for mistake in config.unrepeatable(state, state.model.LLM.spec)] == places


def test_line_that_makes_work_repeatable_is_named_with_its_reason() -> None:
    with pytest.raises(Unsupported) as caught:
        ensure_supported(state_file(verify={}, merge__delay=1), "state.toml")
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.value) == ("merge.delay", "1")
    assert mistake.allowed.startswith("`delay = 0` where results are computed again: replays begin")


@pytest.mark.parametrize("codec", ["int2", "sparse"])
def test_codec_that_needs_error_feedback_is_named_where_work_is_repeated(codec: str) -> None:
    """Who follows one line of advice is not led back by another."""
    with pytest.raises(Unsupported) as caught:
        ensure_supported(state_file(verify={}, merge__codec=codec, merge__error_feedback=True), "state.toml")
    (mistake,) = caught.value.mistakes
    assert mistake.allowed.startswith('`error_feedback = false` and `codec = "int4"` where results are computed again')
    ensure_supported(state_file(verify={}, merge__codec="int4", merge__error_feedback=False), "state.toml")


def test_scores_are_named_once_and_allow_every_line_that_replays_refuse() -> None:
    lines = {"merge__local_steps": 101, "merge__error_feedback": True, "merge__codec": "int2", "merge__delay": 1}
    with pytest.raises(Unsupported) as caught:
        ensure_supported(state_file(verify={}, **lines), "state.toml")
    assert [mistake.path for mistake in caught.value.mistakes] == [
        "merge.local_steps",
        "merge.error_feedback",
        "merge.delay",
    ]
    assert str(caught.value).count('`by = "scores"`') == 1
    ensure_supported(state_file(verify={"by": "scores"}, **lines), "state.toml")
