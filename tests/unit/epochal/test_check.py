"""`epochal check`: every mistake of the files, and of what they name, in one report."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from epochal.state.config.state_file import MergeConfig
from epochal.tools.quality import OF_DELAY, best_of_delay
from epochal.tools.state_files import MAX_CONFIG_BYTES
from epochal.trainers.first_parameters import make_first_model
from tests.support.data.states import state_file, state_text
from tests.support.drive.cli import Ran, run_main
from tests.support.heavy import need_module
from tests.support.models.installed_trainers import register
from tests.support.models.model_files import write_model
from tests.support.models.tiny_llama import LLAMA
from tests.unit.docs.test_blocks import merged

DATA = 'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 16\n'
SERVED = {"model__LLM__data_location": {"Server": "127.0.0.1:9"}}


def checked(folder: Path, state: str, data: str | None = None, *options: str) -> Ran:
    (folder / "state.toml").write_text(state)
    if data is None:
        return run_main("check", str(folder / "state.toml"), *options)
    (folder / "data.toml").write_text(data)
    return run_main("check", str(folder / "state.toml"), "--data-config", str(folder / "data.toml"), *options)


def write_tokens(folder: Path, token: int = 7) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.full(6400, token, "<u2").tofile(folder / "a.bin")
    return folder


def located(location: Any, **overrides: Any) -> str:
    return state_text(model__LLM__data_location=location, **overrides)


def test_check_of_a_good_file_exits_0(tmp_path: Path) -> None:
    ran = checked(tmp_path, state_text())
    place = tmp_path / "state.toml"
    size, verdict = ran.out.splitlines()
    assert (ran.code, verdict) == (0, f"{place} is valid")
    assert size.startswith(f"{place}: the model has 29,008 parameters: a checkpoint takes 233 KB,"), size


def test_check_reports_every_mistake_of_both_files_and_exits_2(tmp_path: Path) -> None:
    state = state_text(config__min_clients=-1, config__epoch_tyme=3, model__LLM__data_type="Finetuning")
    ran = checked(tmp_path, state, 'dir = "data"\ntoken_size = "ThreeBytes"\nseq_len = 0\n')
    ran.expect(2, "state.toml", "config.min_clients", "epoch_tyme", "epoch_time", "data.toml", "token_size", "seq_len")
    assert ran.err.endswith("see: epochal explain invalid-config\n")


def test_check_of_two_files_that_do_not_fit_each_other_exits_2(tmp_path: Path) -> None:
    state = state_text(model__LLM__data_location={"Server": "127.0.0.1:9"})
    checked(tmp_path, state, 'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 17\n').expect(2, "17", "16")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"run_id = ", b"#" * (MAX_CONFIG_BYTES + 1)])
def test_check_of_an_unreadable_file_exits_2_and_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.toml"
    if content is not None:
        path.write_bytes(content)
    run_main("check", str(path)).expect(2, str(path))


def test_check_reports_what_is_missing_and_unsupported_together(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    state = located({"Local": str(absent)}, model__LLM__architecture="Torchtitan")
    checked(tmp_path, state).expect(2, "model.LLM.architecture is", f"{absent} cannot be read", "--no-files")


def test_check_without_files_opens_none(tmp_path: Path) -> None:
    checked(tmp_path, located({"Local": str(tmp_path / "absent")}), None, "--no-files").expect(0, "is valid")


def test_check_finds_tokens_that_the_model_does_not_know(tmp_path: Path) -> None:
    state = located({"Local": str(write_tokens(tmp_path / "data", 999))})
    checked(tmp_path, state).expect(2, "model.LLM.data_location: data index 0 has token 999", "allows 0 to 255")


def test_check_opens_the_held_out_data_too(tmp_path: Path) -> None:
    state = state_text(model__LLM__held_out_location={"Local": str(write_tokens(tmp_path / "held", 999))})
    checked(tmp_path, state).expect(2, "model.LLM.held_out_location: data index 0 has token 999")
    pinned = state_text(
        config__data_fingerprint="0" * 64, model__LLM__held_out_location={"Local": str(write_tokens(tmp_path / "held"))}
    )
    checked(tmp_path, pinned).expect(2, "model.LLM.data_location: these data have fingerprint")
    assert "held_out_location" not in checked(tmp_path, pinned).err, "the pin is of the run's data"
    later = [{"at_step": 2, "values": {"model.LLM.held_out_location": {"Local": str(tmp_path / "absent")}}}]
    changing = state_text(model__LLM__held_out_location={"Local": str(tmp_path / "held")}, changes=later)
    checked(tmp_path, changing).expect(2, "changes[0]: model.LLM.held_out_location: ", "absent")


def test_check_opens_the_folder_of_a_data_file(tmp_path: Path) -> None:
    checked(tmp_path, state_text(**SERVED), DATA).expect(2, "data.toml: dir: ", "data cannot be read")
    write_tokens(tmp_path / "data", 999)
    checked(tmp_path, state_text(**SERVED), DATA).expect(2, "data.toml: dir: data index 0 has token 999")
    write_tokens(tmp_path / "data")
    checked(tmp_path, state_text(**SERVED), DATA).expect(0, "data.toml fits it")


def test_check_compares_a_manifest_with_the_files(tmp_path: Path) -> None:
    state = located({"Local": str(write_tokens(tmp_path / "data"))})
    run_main("data", "manifest", str(tmp_path / "data")).expect(0)
    checked(tmp_path, state).expect(0)
    (tmp_path / "data" / "b.bin").write_bytes(bytes(64))
    checked(tmp_path, state).expect(2, "the manifest does not list b.bin")


def test_check_compares_the_pinned_fingerprint(tmp_path: Path) -> None:
    location = {"Local": str(write_tokens(tmp_path / "data"))}
    checked(tmp_path, located(location, config__data_fingerprint="0" * 64)).expect(
        2, "these data have fingerprint", "config.data_fingerprint pins 000", "these are token files, tokens of 2 bytes"
    )
    ran = run_main("data", "inspect", "--state", str(tmp_path / "state.toml"), "--json")
    assert ran.code == 2
    fingerprint = json.loads(ran.out)["fingerprint"]
    checked(tmp_path, located(location, config__data_fingerprint=fingerprint)).expect(0)


RECORD = '{"prompt": "what?", "completion": "so"}'
PACKED = {"model__LLM__data_type": "Finetuning", "config__init_min_clients": 1, **SERVED}


def test_check_opens_the_records_that_a_data_server_serves(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text(f"{RECORD}\n{RECORD}")
    checked(tmp_path, state_text(**PACKED), 'dir = "data"').expect(0, "fits it")
    (tmp_path / "data" / "a.jsonl").write_text('{"picture": 7}')
    checked(tmp_path, state_text(**PACKED), 'dir = "data"').expect(2, "data index 0 is a record of picture")


@pytest.mark.parametrize(
    ("data", "state", "said"),
    [
        (DATA, PACKED, "seq_len is 16; allowed: neither it nor token_size: model.LLM.data_type"),
        ('dir = "data"', SERVED, "seq_len is missing; allowed: 16, as model.LLM.max_seq_len"),
        ('dir = "data"\ntoken_size = 2', PACKED, "allowed: with a line seq_len, and not without one"),
    ],
)
def test_check_refuses_a_data_file_for_another_kind_of_samples(
    tmp_path: Path, data: str, state: dict[str, Any], said: str
) -> None:
    checked(tmp_path, state_text(**state), data).expect(2, said)


def test_check_imports_the_task_encoder_and_opens_the_data_too(tmp_path: Path) -> None:
    packed = {"model__LLM__data_type": "Finetuning", "packing__task_encoder": "absent"}
    ran = checked(tmp_path, located({"Local": str(tmp_path / "absent")}, **packed))
    ran.expect(2, "packing.task_encoder 'absent' is not installed", "absent cannot be read")


def test_check_says_where_a_module_in_the_working_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enc_here.py").write_text("")
    register(tmp_path / "site", "here", "epochal.task_encoders", qa="enc_here:QA")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    packed = {"model__LLM__data_type": "Finetuning", "packing__task_encoder": "qa"}
    ran = checked(tmp_path, located({"Local": str(tmp_path)}, **packed))
    ran.expect(2, f"{tmp_path} holds it: set PYTHONPATH={tmp_path}")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ({"Server": "127.0.0.1:9"}, "name the server's own file with --data-config"),
        ({"WeightedHttp": f"http://127.0.0.1:9/mix.json#sha256={64 * '0'}"}, "--network opens it"),
    ],
)
def test_check_says_what_it_does_not_open(tmp_path: Path, location: Any, reason: str) -> None:
    checked(tmp_path, located(location)).expect(0, "was not opened", reason)


def test_check_asks_for_no_data_file_that_was_named_with_a_mistake(tmp_path: Path) -> None:
    ran = checked(tmp_path, located({"Server": "127.0.0.1:9"}), 'dir = "file://host/x"\n')
    ran.expect(2, 'dir is "file://host/x"')
    assert "--data-config" not in ran.err


def test_check_with_network_opens_urls(tmp_path: Path) -> None:
    state = located({"WeightedHttp": f"http://127.0.0.1:9/mix.json#sha256={64 * '0'}"})
    checked(tmp_path, state, None, "--network").expect(2, "model.LLM.data_location: http://127.0.0.1:9/mix.json")


def test_check_opens_a_mix_on_this_machine(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", 999)
    (tmp_path / "mix.json").write_text(json.dumps([{"location": {"Local": "data"}, "weight": 1}]))
    ran = checked(tmp_path, located({"WeightedHttp": str(tmp_path / "mix.json")}))
    ran.expect(2, "source 0 (Local) of the mix: data index 0 has token 999")


@pytest.mark.parametrize(
    ("place", "overrides"),
    [
        ("data_location.Local", {"model__LLM__data_location": {"Local": "gz://shelf/7"}}),
        ("checkpoint.Local", {"model__LLM__checkpoint": {"Local": "https://host/model.safetensors"}}),
    ],
)
def test_check_refuses_a_url_where_a_path_is_meant(tmp_path: Path, place: str, overrides: dict[str, Any]) -> None:
    checked(tmp_path, state_text(**overrides)).expect(2, f"model.LLM.{place}", "a path on th")


HF_LLAMA = {"model__LLM__architecture": "HfLlama"}
HUB = {"model__LLM__checkpoint": {"Hub": {"repo_id": "someone/model"}}}


def test_check_says_that_a_repository_was_not_opened(tmp_path: Path) -> None:
    ran = checked(tmp_path, state_text(**HF_LLAMA, **HUB))
    ran.expect(0, "model.LLM.checkpoint was not opened: it is on another machine; --network opens it", "is valid")


def test_check_names_the_config_that_a_hugging_face_model_lacks(tmp_path: Path) -> None:
    checked(tmp_path, state_text(**HF_LLAMA)).expect(2, "model.LLM.hf is missing", "`[model.LLM.hf]`")


def test_check_opens_a_folder_of_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", {"evil": np.ones((2, 3), np.float32)})
    state = state_text(model__LLM__checkpoint={"Local": str(folder)})
    checked(tmp_path, state).expect(
        2, "model.LLM.checkpoint", "does not hold the weights of the run's model", "'embedding'"
    )
    write_model(folder, make_first_model(state_file(), 0).replica.parameters)
    checked(tmp_path, state).expect(0, "is valid")


def test_check_compares_tokens_with_the_vocabulary_of_a_config(tmp_path: Path) -> None:
    need_module("transformers")
    location = {"Local": str(write_tokens(tmp_path / "data", 999))}
    checked(tmp_path, located(location, **HF_LLAMA, model__LLM__hf=LLAMA)).expect(
        2, "data index 0 has token 999", "allows 0 to 255"
    )


def test_check_compares_samples_to_pack_with_the_model_at_the_checkpoint(tmp_path: Path) -> None:
    need_module("transformers")
    parameters = make_first_model(state_file(**HF_LLAMA, model__LLM__hf=LLAMA), 0).replica.parameters
    folder = write_model(tmp_path / "model", parameters, config=LLAMA)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"input_ids": [7, 256]}\n' * 64)
    packed = {"model__LLM__data_type": "Finetuning", "model__LLM__checkpoint": {"Local": str(folder)}}
    state = located({"Local": str(tmp_path / "data")}, **HF_LLAMA, **packed)
    checked(tmp_path, state).expect(2, "token 256", "0 to 255")


def test_check_without_the_libraries_of_a_model_says_what_was_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.trainers.architectures.find_spec", lambda name: None)
    ran = checked(tmp_path, state_text(**HF_LLAMA, model__LLM__hf=LLAMA))
    ran.expect(0, "tokens were not compared", "not installed: torch and transformers; pip install 'epochal[torch]'")
    folder = write_model(tmp_path / "model", {"w": np.ones((2, 3), np.float32)})
    ran = checked(tmp_path, state_text(**HF_LLAMA, model__LLM__checkpoint={"Local": str(folder)}))
    ran.expect(0, "model.LLM.checkpoint was not opened: not installed: torch and transformers")


BILLION = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}


def test_check_names_the_limits_that_a_billion_parameters_exceed(tmp_path: Path) -> None:
    need_module("transformers")
    model = {**HF_LLAMA, "model__LLM__hf": BILLION, "config__init_min_clients": 6, "merge__codec": "float32"}
    ran = checked(tmp_path, state_text(**model))
    ran.expect(
        2,
        "the model has 1,235,814,400 parameters: a checkpoint takes 9.89 GB, a client's result 4.94 GB, "
        "the results of 6 clients 29.7 GB",
        "blobs.max_total_bytes is 4294967296; allowed: at least 39546",
        "for 6 clients write `max_total_bytes = 8036",
        "config.warmup_time is 30 s: a client with a line of 100/100 Mbit/s needs 802 s to download a checkpoint of "
        "9.89 GB beside all others, and has half of it once config.min_clients are ready; write `warmup_time = 2100`",
    )
    needed = int(ran.err.partition("allowed: at least ")[2].partition(",")[0])
    checked(tmp_path, state_text(**model, blobs__max_total_bytes=needed)).expect(
        0, "2 rounds of 6 clients do not find room beside 2 checkpoints; write `max_total_bytes = 8036", "is valid"
    )
    enough = int(ran.err.partition("write `max_total_bytes = ")[2].partition("`")[0])
    assert "max_total_bytes" not in checked(tmp_path, state_text(**model, blobs__max_total_bytes=enough)).err
    small = model | {"merge__codec": "int4", "blobs__max_total_bytes": needed}
    assert "max_total_bytes" not in checked(tmp_path, state_text(**small)).err


SHORT = {"config__client_timeout_s": 1.5}


def test_check_warns_of_timers_that_modest_lines_break(tmp_path: Path) -> None:
    ran = checked(tmp_path, state_text(**SHORT))
    ran.expect(0, "note: ", "config.client_timeout_s is 1.5 s", "write `client_timeout_s = 3`", "is valid")
    assert "timeout" not in checked(tmp_path, state_text()).err


@pytest.mark.parametrize(("every", "is_early"), [(0, False), (3, True), (7, True), (8, False)])
def test_check_warns_of_checkpoints_that_end_replays_early(tmp_path: Path, every: int, is_early: bool) -> None:
    verified = {"merge__inner_state": "reset", "verify__within": 8}
    ran = checked(tmp_path, state_text(config__checkpoint_every=every, **verified))
    ran.expect(0, "is valid")
    said = f"config.checkpoint_every is {every}, verify.within is 8: verifiers have {every} to {2 * every} rounds"
    assert (said in ran.err) is is_early
    assert "verify.within" not in checked(tmp_path, state_text(config__checkpoint_every=every)).err


GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
REPLAYED = {"verify": {}, "merge__inner_state": "reset", "model__LLM__architecture": "HfAuto"}


@pytest.mark.parametrize(("steps", "verified", "is_long"), [(30, {}, False), (31, {}, True), (31, None, False)])
def test_check_warns_of_rounds_too_long_for_bf16(
    tmp_path: Path, steps: int, verified: dict[str, Any] | None, is_long: bool
) -> None:
    rounds: dict[str, Any] = {**HF_LLAMA, "model__LLM__hf": LLAMA, "merge__local_steps": steps}
    rounds |= {} if verified is None else {"verify": verified}
    ran = checked(tmp_path, state_text(**rounds), None, "--no-files")
    ran.expect(0, "is valid")
    said = f"merge.local_steps is {steps}: honest results of members in bf16 may lie 0.1 and more from their replays"
    assert (said in ran.err) is is_long
    assert ("write `local_steps = 30`, or fewer, or let members use --precision float32" in ran.err) is is_long


@pytest.mark.parametrize("is_later", [False, True])
def test_check_notes_a_delay_without_the_outer_step_measured_for_it(tmp_path: Path, is_later: bool) -> None:
    best = best_of_delay(MergeConfig().local_steps)
    assert best is not None
    told = f"write `outer_lr = {best.merge.outer_lr:g}` and `outer_momentum = {best.merge.outer_momentum:g}`"
    later = {"changes": [{"at_step": 3, "values": {"merge.delay": 1}}]}
    ran = checked(tmp_path, state_text(**(later if is_later else {"merge__delay": 1})))
    ran.expect(0, "state.toml: merge.delay is 1 with outer_lr = ", told)
    wanted = {f"merge__{name}": getattr(best.merge, name) for name in OF_DELAY}
    assert "merge.delay is" not in checked(tmp_path, state_text(**wanted)).err


def test_check_notes_no_bf16_where_members_have_none(tmp_path: Path) -> None:
    ran = checked(tmp_path, state_text(verify={}, merge__local_steps=100))
    ran.expect(0, "is valid")
    assert "members in bf16" not in ran.err


def test_check_refuses_dropout_that_a_config_has_by_default(tmp_path: Path) -> None:
    need_module("transformers")
    ran = checked(tmp_path, state_text(**REPLAYED, model__LLM__hf=GPT2 | {"attn_pdrop": 0.2}))
    written, *defaults = (
        f"model.LLM.hf.{name} is {{}}; allowed: `{name} = 0.0` where results are" for name in NO_DROPOUT
    )
    ran.expect(2, written.format("0.2"), *(line.format("0.1") for line in defaults))
    assert [ran.err.count(f"hf.{name} is") for name in ("summary_first_dropout", *NO_DROPOUT)] == [0, 1, 1, 1]
    assert "--no-files" not in ran.err, "no file is at fault"
    checked(tmp_path, state_text(**REPLAYED, model__LLM__hf=GPT2 | NO_DROPOUT)).expect(0, "is valid")
    scored = REPLAYED | {"verify": {"by": "scores"}}
    checked(tmp_path, state_text(**scored, model__LLM__hf=GPT2)).expect(0, "is valid")


def test_check_refuses_dropout_of_a_model_at_the_checkpoint(tmp_path: Path) -> None:
    need_module("transformers")
    parameters = make_first_model(state_file(model__LLM__architecture="HfAuto", model__LLM__hf=GPT2), 0).replica
    folder = write_model(tmp_path / "model", parameters.parameters, config=GPT2)
    ran = checked(tmp_path, state_text(**REPLAYED, model__LLM__checkpoint={"Local": str(folder)}))
    ran.expect(2, "model.LLM.checkpoint: ", "model.LLM.hf.embd_pdrop is 0.1; allowed: `embd_pdrop = 0.0`")


def test_model_of_the_page_on_torch_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("transformers")
    page = (Path(__file__).parents[3] / "docs" / "torch.md").read_text(encoding="utf-8")
    (text,) = (block.partition("```")[0] for block in page.split("```toml\n")[1:] if "\n[model.LLM.hf]" in block)
    write_tokens(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    ran = checked(tmp_path, tomli_w.dumps(merged(tomllib.loads(state_text()), tomllib.loads(text))))
    ran.expect(0, "the model has 221,545,472 parameters: a checkpoint takes 1.77 GB", "is valid")


def test_check_of_an_open_run_gives_the_line_that_pins_its_data(tmp_path: Path) -> None:
    text = located({"Local": str(write_tokens(tmp_path / "data"))})
    ran = checked(tmp_path, text)
    ran.expect(0, "note: ", "everybody may join this run")
    fingerprint = ran.err.partition('data_fingerprint = "')[2][:64]
    pinned = located({"Local": str(tmp_path / "data")}, config__data_fingerprint=fingerprint)
    assert checked(tmp_path, pinned).err == ""
    closed = located({"Local": str(tmp_path / "data")}, access__mode="keys", access__keys=["ab" * 32])
    assert checked(tmp_path, closed).err == ""


@pytest.mark.parametrize("command", ["check", "coordinator", "plan", "notify"])
@pytest.mark.parametrize("lines", ['secret = "T00PLANTED"', 'ulr = "https://x/T00PLANTED"', "secret = T00PLANTED"])
def test_commands_show_no_secret_of_a_webhook_with_a_mistake(tmp_path: Path, command: str, lines: str) -> None:
    path = tmp_path / "state.toml"
    path.write_text(f'{state_text()}\n[[notify.webhooks]]\nurl = "https://x"\n{lines}\n')
    more = ["--clients", "2 x 1gbit 10k tokens/s"] if command == "plan" else []
    ran = run_main(command, str(path), *more)
    assert (ran.code, "T00PLANTED" in ran.out + ran.err) == (2, False)
