"""A mistake names its path, the value, what is allowed and the nearest known key; all of a file come together."""

import math
from datetime import date
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.config.data_file import parse_data_config
from epochal.state.config.model_table import MAX_CUSTOM_BYTES, MAX_HF_CONFIG_BYTES
from epochal.state.config.state_file import ROUNDED_TO_0, ROUNDED_TO_1, parse_state
from epochal.state.errors import InvalidConfig, Mistake
from tests.support.data.states import state_file, state_tables


def mistakes_of(**overrides: Any) -> dict[str, Mistake]:
    """Return the mistakes of a valid file with these values replaced, by path; None removes a line of `[config]`."""
    tables = state_tables(**overrides)
    tables["config"] = {name: value for name, value in tables["config"].items() if value is not None}
    with pytest.raises(InvalidConfig) as caught:
        parse_state(tomli_w.dumps(tables), "state.toml")
    by_path = {mistake.path: mistake for mistake in caught.value.mistakes}
    assert len(by_path) == len(caught.value.mistakes)
    return by_path


def test_mistakes_of_fields_and_rules_are_reported_together() -> None:
    found = mistakes_of(
        run_id="x" * 33,
        config__warmup_time=700,
        config__max_round_train_time="soon",
        config__min_clients=3,
        config__verification_percent=101,
        progress__epoch_start_data_index=7,
        config__data_indices_per_batch=2,
        model__LLM__optimizer={"AdamW": {"betas": [0.9], "weight_decay": 0.0, "eps": 1e-8}},
    )
    assert set(found) == {
        "run_id",
        "config.warmup_time",
        "config.max_round_train_time",
        "config.min_clients",
        "config.verification_percent",
        "progress.epoch_start_data_index",
        "model.LLM.optimizer.AdamW.betas.1",
    }
    assert str(found["config.warmup_time"]) == "config.warmup_time is 700; allowed: less than config.epoch_time, 600"
    assert found["config.max_round_train_time"].value == '"soon"'
    assert found["config.verification_percent"].allowed == "an integer from 0 to 100"
    assert found["progress.epoch_start_data_index"].allowed == "a multiple of config.data_indices_per_batch, 2"


DURATIONS = (
    "warmup_time cooldown_time epoch_time max_round_train_time round_witness_time waiting_for_members_extra_time"
)


@pytest.mark.parametrize("name", DURATIONS.split())
@pytest.mark.parametrize("value", [0, -1, 0.0, float("nan"), float("inf"), True, "5", 1e10])
def test_duration_not_above_zero_or_no_number_is_a_mistake(name: str, value: Any) -> None:
    found = mistakes_of(**{f"config__{name}": value})
    assert found[f"config.{name}"].allowed.startswith("a number of seconds above 0")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run_id", ""),
        ("run_id", "é" * 17),
        ("run_id", 7),
        ("run_state", "Training"),
        ("config__min_clients", 0),
        ("config__min_clients", 1.0),
        ("config__witness_nodes", -1),
        ("config__global_batch_size_start", 0),
        ("config__global_batch_size_warmup_tokens", -1),
        ("config__total_steps", 0),
        ("config__total_steps", 2**63),
        ("config__on_bad_data", "ignore"),
        ("progress__step", 0),
        ("progress__epoch", -1),
        ("model__LLM__max_seq_len", 0),
        ("model__LLM__architecture", "Transformer"),
        ("model__LLM__data_type", "Sft"),
        ("model__LLM__data_location", "Nowhere"),
        ("model__LLM__data_location", {}),
        ("model__LLM__data_location", {"Local": "a", "Server": "b:1"}),
        ("model__LLM__data_location__Local", ""),
        ("model__LLM__checkpoint", 5),
        ("model__LLM__optimizer", ["Dummy"]),
        ("model__LLM__ngram__context", 0),
        ("model__LLM__custom", "lab"),
        ("model__LLM__custom", {"trainer": "lab", "name": "x" * MAX_CUSTOM_BYTES}),
        ("model__LLM__hf", "llama"),
        ("model__LLM__hf", {"model_type": "llama", "vocabulary": "x" * MAX_HF_CONFIG_BYTES}),
        ("access__mode", "closed"),
        ("access__keys", ["AB" * 32]),
        ("merge__local_steps", 0),
        ("packing__method", "best"),
        ("packing__pool_size", 0),
        ("packing__pool_size", 65_537),
        ("packing__oversized", "cut"),
        ("packing__max_failed_samples", -1),
        ("packing__task_encoder", "my encoder"),
        ("packing__task_encoder", "my.module:Encoder"),
        ("merge__outer_lr", 0),
        ("merge__outer_lr", ROUNDED_TO_0),
        ("merge__outer_momentum", 1),
        ("merge__outer_momentum", ROUNDED_TO_1),
        ("merge__inner_state", "drop"),
        ("merge__max_abs", 1e31),
        ("merge__codec", "int16"),
        ("merge__sparse_keep", 0),
        ("merge__sparse_keep", 4097),
        ("merge__error_feedback", 1),
        ("merge__error_feedback_decay", 0),
        ("merge__error_feedback_decay", 1.5),
        ("merge__mean", "median"),
        ("merge__update", "sparse"),
        ("client__fetch_attempts", 101),
        ("client__prefetch_requests", 0),
        ("blobs__max_total_bytes", 0),
    ],
)
def test_value_outside_its_rule_is_a_mistake_at_its_path(path: str, value: Any) -> None:
    if path == "model__LLM__data_location__Local":
        path, value = "model__LLM__data_location", {"Local": ""}
        expected = "model.LLM.data_location.Local"
    else:
        expected = path.replace("__", ".") + (".0" if path == "access__keys" else "")
    assert expected in mistakes_of(**{path: value})


def test_outer_step_is_within_its_bounds_as_float32() -> None:
    least, most = math.nextafter(ROUNDED_TO_0, 1), math.nextafter(ROUNDED_TO_1, 0)
    merge = state_file(merge__outer_lr=least, merge__outer_momentum=most).merge
    assert (merge.outer_lr, merge.outer_momentum) == (least, most)
    rounded = [float(np.float32(value)) for value in (ROUNDED_TO_0, least, most, ROUNDED_TO_1)]
    assert rounded[0] == 0 < rounded[1] < rounded[2] < 1 == rounded[3]


@pytest.mark.parametrize(
    ("path", "table", "wrong", "allowed"),
    [
        ("custom", {"width": 3}, "trainer is missing", "a string that is not empty"),
        ("custom", {"trainer": "a:B"}, 'trainer is "a:B"', "the name under which a package registers the trainer"),
        ("custom", {"trainer": ""}, 'trainer is ""', "a string that is not empty"),
        ("custom", {"trainer": "lab", "since": date(2024, 1, 1)}, "since is 2024-01-01", "a string, true, false, a"),
        ("custom", {"trainer": "lab", "rate": math.inf}, "rate is inf", "a string, true, false, a finite number"),
        ("hf", {"vocab_size": 5}, "model_type is missing", "a string: the kind of the model"),
        ("hf", {"model_type": 3}, "model_type is 3", "a string: the kind of the model"),
        ("hf", {"model_type": "llama", "since": date(2024, 1, 1)}, "since is 2024-01-01", "a string, true, false, a"),
        ("hf", {"model_type": "llama", "rope": {"t": [1, math.nan]}}, "rope.t.1 is nan", "a string, true, false, a"),
    ],
)
def test_wrong_entry_of_a_free_table_is_named_alone(path: str, table: Any, wrong: str, allowed: str) -> None:
    (mistake,) = mistakes_of(**{f"model__LLM__{path}": table}).values()
    assert str(mistake).startswith(f"model.LLM.{path}.{wrong}; allowed: {allowed}")


@pytest.mark.parametrize(
    "address", ["host", "host:", ":80", "host:0", "host:65536", "a b:80", "::1:80", "http://h:80", "[::1]", 9000]
)
def test_data_server_address_without_host_and_port_is_a_mistake(address: Any) -> None:
    found = mistakes_of(model__LLM__data_location={"Server": address})
    assert found["model.LLM.data_location.Server"].allowed.startswith('"host:port"')


@pytest.mark.parametrize("place", ["", "s3://bucket/mix.json", "ftp://h/mix.json", "https://h/mix.json#sha256=AB"])
def test_mix_that_is_neither_a_url_nor_a_path_is_a_mistake(place: str) -> None:
    found = mistakes_of(model__LLM__data_location={"WeightedHttp": place})
    allowed = found["model.LLM.data_location.WeightedHttp"].allowed
    assert allowed.startswith("a URL that starts with http:// or https://, or a path; after it `#sha256=`")


@pytest.mark.parametrize("template", ["https://h/a.bin", "https://h/{}/{}", "{}", "ftp://h/{}"])
def test_url_template_without_exactly_one_place_is_a_mistake(template: str) -> None:
    files = {"url_template": template, "start_index": 0, "n_left_pad_zeros": 0, "num_files": 1}
    http = {"token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle", "location": {"NumberedFiles": files}}
    found = mistakes_of(model__LLM__data_location={"Http": http})
    assert list(found) == ["model.LLM.data_location.Http.location.NumberedFiles.url_template"]


@pytest.mark.parametrize("seed", [list(range(31)), list(range(33)), [256] * 32, [True] * 32, "seed"])
def test_seed_other_than_32_bytes_is_a_mistake(seed: Any) -> None:
    http = {"token_size_in_bytes": "TwoBytes", "shuffle": {"Seeded": seed}, "location": {"SingleUrl": "http://h/a"}}
    found = mistakes_of(model__LLM__data_location={"Http": http})
    assert all(path.startswith("model.LLM.data_location.Http.shuffle.Seeded") for path in found)
    assert {mistake.allowed for mistake in found.values()} == {"a list of 32 integers from 0 to 255"}


def test_learning_rate_that_is_not_finite_is_a_mistake() -> None:
    schedule = {"Constant": {"base_lr": float("inf"), "warmup_init_lr": float("nan"), "warmup_steps": 0}}
    found = mistakes_of(model__LLM__lr_schedule=schedule)
    assert {mistake.allowed for mistake in found.values()} == {"a finite number"}
    assert found["model.LLM.lr_schedule.Constant.base_lr"].value == "inf"


# Keys


def test_misspelt_key_is_one_mistake_with_the_nearest_known_key() -> None:
    found = mistakes_of(config__warmup_time=None, config__warmup_tme=30)
    assert list(found) == ["config.warmup_tme"]
    assert found["config.warmup_tme"].nearest == "warmup_time"
    assert "did you mean `warmup_time`?" in str(found["config.warmup_tme"])


def test_key_in_the_wrong_table_is_named_where_it_belongs() -> None:
    assert mistakes_of(config__max_abs=1.0)["config.max_abs"].nearest == "merge.max_abs"


def test_unknown_key_without_a_near_one_lists_what_is_known() -> None:
    mistake = mistakes_of(blobs__colour="red")["blobs.colour"]
    known = "only the keys max_total_bytes, store, origins, part_bytes, checker_wait_s"
    assert mistake == Mistake("blobs.colour", "an unknown key", known, None)


def test_misspelt_variant_names_the_nearest_one() -> None:
    found = mistakes_of(model__LLM__optimizer={"AdamV": {}}, model__LLM__data_location="dummy")
    assert found["model.LLM.optimizer"].nearest == "AdamW"
    assert found["model.LLM.data_location"].nearest == "Dummy"


def test_two_variants_at_once_are_a_mistake_without_a_suggestion() -> None:
    mistake = mistakes_of(model__LLM__data_location={"Local": "a", "Server": "b:1"})["model.LLM.data_location"]
    assert mistake.value == '{ Local = "a", Server = "b:1" }'
    assert mistake.allowed.startswith("exactly one of ")
    assert mistake.nearest is None


def test_variant_without_its_content_says_what_is_missing() -> None:
    mistake = mistakes_of(model__LLM__data_location="Server")["model.LLM.data_location.Server"]
    assert mistake.value is None
    assert str(mistake).startswith("model.LLM.data_location.Server is missing; allowed: ")


def test_empty_file_misses_each_required_part_once() -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_state("", "state.toml")
    assert [mistake.path for mistake in caught.value.mistakes] == ["run_id", "config", "model"]


# Rules over several fields


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"config__warmup_time": 600}, "config.warmup_time"),
        ({"config__max_round_train_time": 600}, "config.max_round_train_time"),
        ({"config__min_clients": 3}, "config.min_clients"),
        ({"config__witness_nodes": 2}, "config.witness_nodes"),
        ({"config__global_batch_size_start": 13}, "config.global_batch_size_start"),
        (
            {"config__data_indices_per_batch": 3, "progress__epoch_start_data_index": 10},
            "progress.epoch_start_data_index",
        ),
        ({"model__LLM__cold_start_warmup_steps": 10}, "model.LLM.cold_start_warmup_steps"),
        ({"model__LLM__hf": {"model_type": "llama"}}, "model.LLM.hf"),
        ({"model__LLM__architecture": "Custom"}, "model.LLM.architecture"),
        ({"model__LLM__custom": {"trainer": "lab"}}, "model.LLM.custom"),
        ({"access__keys": ["ab" * 32]}, "access.keys"),
        ({"access__mode": "keys", "access__invitations": ["ab" * 32]}, "access.invitations"),
        ({"merge__codec": "sparse"}, "merge.error_feedback"),
        ({"merge__codec": "int2"}, "merge.error_feedback"),
        ({"merge__codec": "float32", "merge__error_feedback": True}, "merge.error_feedback"),
        ({"merge__mean": "senders"}, "merge.mean"),
        ({"merge__codec": "int8", "merge__mean": "senders"}, "merge.mean"),
    ],
)
def test_rule_over_fields_broken_is_a_mistake_at_its_first_field(overrides: dict[str, Any], path: str) -> None:
    assert list(mistakes_of(**overrides)) == [path]


def test_rule_at_its_bound_holds() -> None:
    state_file(
        config__warmup_time=0.3,
        config__epoch_time=0.6,
        config__max_round_train_time=0.1,
        model__LLM__cold_start_warmup_steps=3,
        config__witness_nodes=1,
        config__init_min_clients=1,
    )
    state_file(merge__codec="sparse", merge__error_feedback=True, merge__mean="senders", merge__sparse_keep=4096)
    state_file(merge__codec="int4", merge__error_feedback=True)
    state_file(merge__codec="int2", merge__error_feedback=True)


def test_rule_with_a_wrong_field_is_not_reported_twice() -> None:
    assert list(mistakes_of(config__warmup_time=700, config__epoch_time=-5)) == ["config.epoch_time"]


# Files that are no TOML, and data.toml


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\nb = = 2\n", "line 2, column 5"),
        ("[a]\n[a]\n", "line 2"),
        ("a = " + "[" * 100_000, "nested"),
        ("a = " + "9" * 5000, "integer"),
    ],
)
def test_text_that_is_not_toml_names_the_place(text: str, place: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_state(text, "state.toml")
    (mistake,) = caught.value.mistakes
    assert mistake.value is not None
    assert mistake.value.startswith("not TOML: ")
    assert place in mistake.value


def test_data_file_mistakes_are_reported_together() -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_data_config("token_size = 3\nseq_len = 0\nshufle_seed = []\n", "some/data.toml")
    assert str(caught.value).startswith("some/data.toml: 4 mistakes\n")
    assert {mistake.path: mistake.nearest for mistake in caught.value.mistakes} == {
        "shufle_seed": "shuffle_seed",
        "dir": None,
        "token_size": None,
        "seq_len": None,
    }


@pytest.mark.parametrize("size", ["3", "2.0", "true", '"2"', '"ThreeBytes"'])
def test_data_file_token_size_other_than_two_or_four_is_a_mistake(size: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_data_config(f"dir = 'd'\ntoken_size = {size}\nseq_len = 5\n", "data.toml")
    assert [mistake.path for mistake in caught.value.mistakes] == ["token_size"]


json_like = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abAHSé. ", max_size=5), inner, max_size=3),
    max_leaves=8,
)
PATHS = """run_id run_state config config__warmup_time progress model model__LLM model__LLM__data_location
    model__LLM__optimizer model__LLM__lr_schedule model__LLM__custom access access__keys"""


def paths_of_mistakes(text: str) -> list[str]:
    try:
        parse_state(text, "state.toml")
    except InvalidConfig as error:
        return [mistake.path for mistake in error.mistakes]
    return []


@given(path=st.sampled_from(PATHS.split()), value=json_like)
def test_any_value_anywhere_is_read_or_reported_below_its_path(path: str, value: Any) -> None:
    dotted = path.replace("__", ".")
    found = paths_of_mistakes(tomli_w.dumps(state_tables(**{path: value})))
    assert all(where.startswith(dotted) for where in found)


@pytest.mark.parametrize("place", ["data_location", "checkpoint"])
def test_mistake_of_a_table_in_place_of_a_path_asks_for_a_string(place: str) -> None:
    mistake = mistakes_of(**{f"model__LLM__{place}": {"Local": {"path": "data"}}})[f"model.LLM.{place}.Local"]
    assert mistake.value == '{ path = "data" }'
    assert "machine, as a string" in mistake.allowed
