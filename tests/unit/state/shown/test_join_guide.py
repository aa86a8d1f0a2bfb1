"""How a machine joins a run, as it follows from the state file."""

from typing import Any

import pytest

from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.model.tensors import TensorLayout
from epochal.state.shown.join_guide import JoinGuide, join_guide, room_of, trainer_named
from epochal.state.shown.spool_room import spool_bytes
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.packages import trainer_of
from tests.support.data.states import state_file

LAYOUT = TensorLayout((("w", (1000, 1000)),))
FILES = {"token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}


def guide(room: Any = None, **overrides: Any) -> JoinGuide:
    return join_guide(state_file(**overrides), "1.0", room)


def with_data(location: Any) -> JoinGuide:
    return guide(model__LLM__data_location=location)


def test_every_architecture_names_the_trainer_that_computes_it() -> None:
    for architecture, entry in ARCHITECTURES.items():
        custom = {"trainer": "lab"} if architecture is Architecture.CUSTOM else None
        spec = ModelSpec(architecture=architecture, custom=custom)
        assert trainer_named(spec) == (entry.trainer or trainer_of(spec)), architecture


def test_a_torch_model_needs_the_extra_of_its_trainer() -> None:
    found = guide(model__LLM__architecture="HfLlama", model__LLM__hf={"model_type": "llama"})
    assert (found.trainer, found.extras, found.packaged) == ("torch", ("torch",), False)


@pytest.mark.parametrize(("checkpoint", "own"), [({"Hub": {"repo_id": "org/base"}}, False), ({"Local": "base"}, True)])
def test_an_adapter_needs_its_extra_and_maybe_a_copy_of_its_base(checkpoint: Any, own: bool) -> None:
    found = guide(
        model__LLM__architecture="HfAuto", model__LLM__adapter={"Lora": {}}, model__LLM__checkpoint=checkpoint
    )
    assert (found.trainer, found.extras, found.own_base) == ("torch", ("adapters",), own)


def test_a_custom_model_names_its_package() -> None:
    found = guide(model__LLM__architecture="Custom", model__LLM__custom={"trainer": "lab"})
    assert (found.trainer, found.packaged) == ("lab", True)


def test_a_model_without_arithmetic_needs_no_library() -> None:
    found = guide(model__LLM__architecture="HfLlama", model__LLM__checkpoint={"Dummy": {}})
    assert (found.trainer, found.extras) == ("null", ())


@pytest.mark.parametrize(
    ("location", "kind", "places", "extras"),
    [
        ("Dummy", "made up", (), ()),
        ({"Server": "data.example:9000"}, "server", ("data.example:9000",), ()),
        ({"Server": "tls://a:1,b:2"}, "server", ("a:1", "b:2"), ()),
        ({"Local": "tokens"}, "files", ("tokens",), ()),
        ({"Preprocessed": "hf://datasets/lab/x"}, "rows", ("hf://datasets/lab/x",), ("parquet", "hub")),
        ({"Preprocessed": "s3://b/x"}, "rows", ("s3://b/x",), ("parquet", "object-stores")),
        ({"WeightedHttp": "https://h/mix.json"}, "mixture", ("https://h/mix.json",), ()),
        ({"Http": {"location": {"SingleUrl": "http://h/t.bin"}} | FILES}, "http", ("http://h/t.bin",), ()),
    ],
)
def test_data_are_named_with_the_extras_that_read_them(
    location: Any, kind: str, places: tuple[str, ...], extras: tuple[str, ...]
) -> None:
    found = with_data(location | {} if isinstance(location, dict) else location)
    assert (found.data.kind, found.data.places, found.extras) == (kind, places, extras)


def test_a_bucket_needs_the_extra_of_object_stores() -> None:
    held = {"S3": {"bucket_name": "b", "filter_directory": "f", "endpoint": "http://127.0.0.1:9000"}}
    found = with_data({"Http": {"location": held} | FILES})
    assert (found.data.kind, found.data.places[0], found.extras) == ("bucket", "s3://b/f", ("object-stores",))
    assert found.data.loopback


@pytest.mark.parametrize(
    ("server", "loopback", "insecure"),
    [("127.0.0.1:9", True, False), ("[::1]:9", True, False), ("h:9", False, True), ("tls://h:9", False, False)],
)
def test_a_data_server_without_tls_needs_to_be_accepted(server: str, loopback: bool, insecure: bool) -> None:
    found = with_data({"Server": server}).data
    assert (found.loopback, found.insecure) == (loopback, insecure)


def test_files_of_their_own_are_needed_where_the_location_is_a_path() -> None:
    assert with_data({"Local": "/data"}).data.own
    assert with_data({"WeightedHttp": "mix.json"}).data.own
    assert not with_data({"WeightedHttp": "https://h/mix.json"}).data.own


def test_few_of_many_places_are_named_and_no_password() -> None:
    urls = [f"https://user:secret@h/{number}.bin" for number in range(9)]
    found = with_data({"Http": {"location": {"Urls": urls}} | FILES}).data
    assert found.place_count == 9
    assert found.places == tuple(f"https://h/{number}.bin" for number in range(4))


def run(**overrides: Any) -> StateFile:
    return state_file(**overrides)


def test_a_client_needs_room_for_its_own_result_alone() -> None:
    state = run(merge__codec="float32", config__init_min_clients=3)
    found = room_of(state, LAYOUT, 8_000_100)
    assert (found.parameter_count, found.trainer_bytes, found.download_bytes) == (10**6, 16 * 10**6, 8_000_100)
    assert (found.result_bytes, found.update_bytes, found.base_bytes) == (4 * 10**6, 515_628, 0)
    assert found.spool_bytes == spool_bytes(LAYOUT, state)


def test_invitations_and_keys_are_said_before_anybody_asks() -> None:
    found = guide(access__mode="invitations", access__invitations=["a" * 64])
    assert found.access == "invitations"
    assert guide().access == "open"


def test_muon_keeps_one_moment_of_a_hidden_matrix() -> None:
    layout = TensorLayout((("embed.weight", (100, 10)), ("layer.bias", (10,)), ("layer.weight", (10, 10))))
    muon = {"Muon": {"momentum": 0.95, "weight_decay": 0.0}}
    found = room_of(run(model__LLM__optimizer=muon), layout, 1)
    assert found.trainer_bytes == 16 * (100 * 10 + 10) + 12 * 100
