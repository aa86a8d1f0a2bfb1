"""Reading and writing state.toml and data.toml: every field and variant, unchanged through a round trip."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli
from pydantic import ValidationError

from epochal.state.config.data_file import DataConfig, check_together, parse_data_config
from epochal.state.config.data_location import (
    MAX_SERVERS,
    DontShuffle,
    DummyData,
    Gcp,
    Http,
    Local,
    Preprocessed,
    Server,
    WeightedHttp,
)
from epochal.state.config.model_table import (
    P2P,
    AdamW,
    Architecture,
    Cosine,
    DataType,
    Distro,
    DummyCheckpoint,
    DummyOptimizer,
    Ephemeral,
    Gcs,
    Hub,
    LocalCheckpoint,
    ModelSpec,
    Muon,
    NgramConfig,
    P2PGcs,
    WarmupStableDecay,
)
from epochal.state.config.schema import TokenSize, known_places
from epochal.state.config.state_file import (
    Access,
    BlobsConfig,
    ClientConfig,
    MergeConfig,
    Progress,
    RunTable,
    StateFile,
    dump_state,
    parse_state,
)
from epochal.state.config.support import ensure_supported
from epochal.state.config.verify_table import VerifyConfig
from epochal.state.errors import InternalError, InvalidConfig
from epochal.state.phase_names import RunState
from epochal.state.wire import document_digest, parse_document
from tests.support.data.states import state_file

ROOT = Path(__file__).resolve().parents[4]

EXAMPLES = ROOT / "examples" / "states"

AS_PSYCHE_WRITES = """
run_id = "llama-run"
run_state = "WaitingForMembers"

[config]
warmup_time = 30
cooldown_time = 5
epoch_time = 600
max_round_train_time = 30
round_witness_time = 2
min_clients = 2
init_min_clients = 3
verification_percent = 50
witness_nodes = 1
global_batch_size_start = 8
global_batch_size_end = 32
global_batch_size_warmup_tokens = 549755813888
total_steps = 25000
waiting_for_members_extra_time = 3

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 2048
cold_start_warmup_steps = 19

[model.LLM.checkpoint.Hub]
repo_id = "somebody/llama2-20m-init"

[model.LLM.data_location.Http]
token_size_in_bytes = "TwoBytes"
shuffle = "DontShuffle"

[model.LLM.data_location.Http.location.Gcp]
bucket_name = "some-bucket"
filter_directory = "tokens"

[model.LLM.lr_schedule.Cosine]
base_lr = 4.0e-4
warmup_steps = 250
warmup_init_lr = 0.0
total_steps = 25000
final_lr = 4.0e-5

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_chunk = 64
compression_topk = 8
quantize_1bit = true
"""


def test_parse_state_file_as_psyche_writes_it_reads_every_value() -> None:
    state = parse_state(AS_PSYCHE_WRITES, "state.toml")
    assert (state.run_id, state.run_state) == ("llama-run", RunState.WAITING_FOR_MEMBERS)
    assert state.config.warmup_time == 30.0
    assert isinstance(state.config.warmup_time, float)
    assert (state.config.min_clients, state.config.init_min_clients, state.config.witness_nodes) == (2, 3, 1)
    assert state.config.global_batch_size_warmup_tokens == 549755813888
    assert state.config.verification_percent == 50
    assert state.verify == VerifyConfig(percent=50)
    llm = state.model.LLM
    assert (llm.architecture, llm.data_type) == (Architecture.HF_LLAMA, DataType.PRETRAINING)
    assert (llm.max_seq_len, llm.cold_start_warmup_steps) == (2048, 19)
    assert llm.checkpoint == Hub(repo_id="somebody/llama2-20m-init")
    assert llm.data_location == Http(
        location=Gcp(bucket_name="some-bucket", filter_directory="tokens"),
        token_size_in_bytes=TokenSize.TWO_BYTES,
        shuffle=DontShuffle(),
    )
    assert llm.lr_schedule == Cosine(
        base_lr=4e-4, warmup_steps=250, warmup_init_lr=0.0, total_steps=25000, final_lr=4e-5
    )
    assert llm.optimizer == Distro(
        clip_grad_norm=1.0, compression_decay=0.999, compression_chunk=64, compression_topk=8, quantize_1bit=True
    )


def test_parse_state_file_without_additions_gets_every_default() -> None:
    state = parse_state(AS_PSYCHE_WRITES, "state.toml")
    assert state.progress == Progress(epoch=0, step=1, epoch_start_data_index=0)
    assert (state.config.data_indices_per_batch, state.config.client_timeout_s) == (1, 30.0)
    assert state.config.on_bad_data == "quarantine"
    assert state.model.LLM.ngram == NgramConfig(context=8, embedding=16, hidden=64)
    assert state.access == Access(mode="open", keys=(), invitations=())
    assert state.merge == MergeConfig(local_steps=8, outer_lr=0.7, outer_momentum=0.8, inner_state="keep", max_abs=1e4)
    assert state.client == ClientConfig(fetch_attempts=6, fetch_timeout_s=30.0, prefetch_requests=2)
    assert state.blobs == BlobsConfig(max_total_bytes=4294967296)
    assert state.run == RunTable(keep_journal="all")


SEED = list(range(32))

HTTP = {"token_size_in_bytes": "FourBytes", "shuffle": {"Seeded": SEED}}

MUON = {"momentum": 0.95, "weight_decay": 0.1, "ns_steps": 5, "adamw_lr_ratio": 1.0, "betas": [0.9, 0.95], "eps": 1e-8}
DISTRO = {"compression_decay": 0.9, "compression_topk": 8, "compression_chunk": 64, "quantize_1bit": False}

STABLE = {
    **{"base_lr": 1.0, "warmup_init_lr": 0.0, "warmup_steps": 1, "stable_steps": 2, "cosine_decay_steps": 3},
    **{"cosine_decay_final_lr": 0.1, "linear_decay_steps": 2, "linear_decay_final_lr": 0.0},
}

NUMBERED = {"url_template": "https://h/{}.bin", "start_index": 0, "n_left_pad_zeros": 3, "num_files": 9}


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("data_location", "Dummy", DummyData),
        ("data_location", {"Server": "data.example.org:9000"}, Server),
        ("data_location", {"Local": "some/folder"}, Local),
        ("data_location", {"WeightedHttp": "https://h/mix.json"}, WeightedHttp),
        ("data_location", {"Preprocessed": "samples"}, Preprocessed),
        ("data_location", {"Http": {**HTTP, "location": {"SingleUrl": "http://h/a.bin"}}}, Http),
        ("data_location", {"Http": {**HTTP, "location": {"NumberedFiles": NUMBERED}}}, Http),
        ("checkpoint", "Ephemeral", Ephemeral),
        ("checkpoint", {"Local": "start.safetensors"}, LocalCheckpoint),
        ("checkpoint", {"Dummy": {"repo_id": ""}}, DummyCheckpoint),
        ("checkpoint", {"Hub": {"repo_id": "a/b", "revision": "main"}}, Hub),
        ("checkpoint", {"P2P": {"repo_id": "a/b"}}, P2P),
        ("checkpoint", {"Gcs": {"bucket": "b", "prefix": "p"}}, Gcs),
        ("checkpoint", {"P2PGcs": {"bucket": "b"}}, P2PGcs),
        ("optimizer", "Dummy", DummyOptimizer),
        ("optimizer", {"AdamW": {"betas": [0, 0.95], "weight_decay": 0, "eps": 1e-8}}, AdamW),
        ("optimizer", {"Muon": MUON}, Muon),
        ("optimizer", {"Distro": DISTRO}, Distro),
        ("lr_schedule", {"WarmupStableDecay": STABLE}, WarmupStableDecay),
    ],
)
def test_every_variant_is_read_as_its_class_and_written_as_before(field: str, value: Any, kind: type) -> None:
    state = state_file(**{f"model__LLM__{field}": value})
    assert type(getattr(state.model.LLM, field)) is kind
    assert tomli.loads(dump_state(state))["model"]["LLM"][field] == value
    assert parse_state(dump_state(state), "state.toml") == state
    again = parse_document(StateFile, json.dumps(state.to_plain()))
    assert again == state
    assert document_digest(again.to_plain()) == document_digest(state.to_plain())


@pytest.mark.parametrize(
    ("address", "tls", "places"),
    [
        ("127.0.0.1:1", False, [("127.0.0.1", 1)]),
        ("[::1]:65535", False, [("::1", 65535)]),
        ("tcp://data.example.org:80", False, [("data.example.org", 80)]),
        ("tls://a:1,[::1]:2,b:3", True, [("a", 1), ("::1", 2), ("b", 3)]),
    ],
)
def test_server_addresses_are_split_into_hosts_and_ports(
    address: str, tls: bool, places: list[tuple[str, int]]
) -> None:
    server = Server(address)
    assert (server.tls, list(server.addresses)) == (tls, places)


@pytest.mark.parametrize(
    "address", ["", "a", "a:0", "a:1,", ",a:1", "a:1, b:2", "ssl://a:1", "tls://", "a:1,tls://b:1"]
)
def test_server_addresses_of_another_form_are_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        Server(address)


def test_server_addresses_have_a_bound() -> None:
    assert len(Server(",".join(["a:1"] * MAX_SERVERS)).addresses) == MAX_SERVERS
    with pytest.raises(ValidationError):
        Server(",".join(["a:1"] * (MAX_SERVERS + 1)))


def test_parse_data_config_token_size_as_name_or_number_means_the_same() -> None:
    two = 'dir = "data/"\ntoken_size = "TwoBytes"\nseq_len = 5\n'
    config = parse_data_config(two, "data.toml")
    assert config == DataConfig(dir="data/", token_size=TokenSize.TWO_BYTES, seq_len=5)
    assert config.token_size is not None
    assert config.token_size.size_bytes == 2
    assert config.shuffle_seed is None
    assert parse_data_config(two.replace('"TwoBytes"', "2"), "data.toml") == config
    four = parse_data_config(two.replace('"TwoBytes"', "4"), "data.toml")
    assert four == DataConfig(dir="data/", token_size=TokenSize.FOUR_BYTES, seq_len=5)


def test_dump_state_spells_out_every_default() -> None:
    text = dump_state(parse_state(AS_PSYCHE_WRITES, "state.toml"))
    assert "client_timeout_s = 30.0" in text
    assert "outer_momentum = 0.8" in text
    assert "revision" not in text


def test_with_progress_keeps_everything_else() -> None:
    state = state_file(config__data_indices_per_batch=4)
    progress = Progress(epoch=2, step=17, epoch_start_data_index=48)
    moved = state.with_progress(RunState.COOLDOWN, progress)
    assert (moved.run_state, moved.progress) == (RunState.COOLDOWN, progress)
    assert moved.with_progress(state.run_state, state.progress) == state
    assert parse_state(dump_state(moved), "state.toml") == moved


def test_with_progress_inside_a_batch_is_our_own_bug() -> None:
    state = state_file(config__data_indices_per_batch=4)
    with pytest.raises(InternalError, match="epoch_start_data_index is 6"):
        state.with_progress(RunState.WARMUP, Progress(epoch_start_data_index=6))


@pytest.mark.parametrize("name", ["demo", "local", "http", "tcp"])
def test_example_state_is_valid_and_supported(name: str) -> None:
    path = EXAMPLES / name / "state.toml"
    state = parse_state(path.read_text(encoding="utf-8"), str(path))
    ensure_supported(state, str(path), {Architecture.EPOCHAL_NGRAM})


@pytest.mark.parametrize("name", ["demo", "tcp"])
def test_example_data_file_fits_its_state(name: str) -> None:
    folder = EXAMPLES / name
    state = parse_state((folder / "state.toml").read_text(encoding="utf-8"), "state.toml")
    data = parse_data_config((folder / "data.toml").read_text(encoding="utf-8"), "data.toml")
    check_together(state, "state.toml", data, "data.toml")


def test_example_demo_is_the_run_that_the_demo_makes() -> None:
    made = (ROOT / "epochal" / "tools" / "testnet" / "demo_state.toml").read_text(encoding="utf-8")
    assert (EXAMPLES / "demo" / "state.toml").read_text(encoding="utf-8") == made


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"verify": {}}, VerifyConfig(percent=5, within=8)),
        ({"config__verification_percent": 10}, VerifyConfig(percent=10)),
        ({"config__verification_percent": 10, "verify": {"within": 4}}, VerifyConfig(percent=10, within=4)),
        ({"config__verification_percent": 10, "verify": {"percent": 10}}, VerifyConfig(percent=10)),
        ({"config__verification_percent": 0, "verify": {"percent": 3}}, VerifyConfig(percent=3)),
    ],
)
def test_percent_of_replays_is_read_under_both_names(fields: dict[str, Any], expected: VerifyConfig | None) -> None:
    state = state_file(**fields)
    assert state.verify == expected
    assert parse_state(dump_state(state), "state.toml") == state


def test_two_different_percents_of_replays_are_a_mistake() -> None:
    with pytest.raises(InvalidConfig) as caught:
        state_file(config__verification_percent=10, verify={"percent": 5})
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.value) == ("config.verification_percent", "10")


def test_mistakes_in_the_table_of_replays_are_named() -> None:
    with pytest.raises(InvalidConfig) as caught:
        state_file(verify={"percent": 0, "withn": 3})
    found = {mistake.path: mistake for mistake in caught.value.mistakes}
    assert found["verify.percent"].allowed == "an integer from 1 to 100"
    assert found["verify.withn"].nearest == "within"


@pytest.mark.parametrize(("percent", "rounds"), [(1, 99), (5, 19), (10, 9), (30, 3), (50, 1), (100, 1)])
def test_probation_is_as_long_as_its_work_is_worth(percent: int, rounds: int) -> None:
    assert VerifyConfig(percent=percent).rounds_on_probation == rounds


def test_documentation_names_every_field_and_variant() -> None:
    page = (ROOT / "docs" / "state-file.md").read_text(encoding="utf-8")
    keys = {path[-1] for model in (StateFile, DataConfig) for path in known_places(model).paths()}
    missing = [key for key in keys - {"LLM"} if not re.search(rf"\b{key}\b", page)]
    assert missing == []


def test_data_file_for_a_run_without_data_server_is_refused() -> None:
    data = parse_data_config('dir = "d"\ntoken_size = 2\nseq_len = 8\n', "data.toml")
    with pytest.raises(InvalidConfig) as caught:
        check_together(state_file(model__LLM__max_seq_len=16), "state.toml", data, "data.toml")
    assert caught.value.source == "data.toml"
    where, length = caught.value.mistakes
    assert (where.path, length.path) == ("", "seq_len")
    assert "model.LLM.data_location in state.toml" in where.allowed
    assert (length.value, length.allowed) == ("8", "16, as model.LLM.max_seq_len in state.toml")


def test_table_of_a_custom_model_keeps_its_values() -> None:
    table = {"trainer": "lab", "layers": [{"width": 3, "rate": 0.5}], "bias": True}
    state = state_file(model__LLM__architecture="Custom", model__LLM__custom=table)
    assert state.model.LLM.spec == ModelSpec(architecture=Architecture.CUSTOM, custom=table)
    assert parse_state(dump_state(state), "state.toml") == state
