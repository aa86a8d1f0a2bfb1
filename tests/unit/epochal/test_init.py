"""`epochal init`: files that start, from options; nothing is overwritten, and mistakes are named."""

import json
import socket
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.commands.design.init import DEFAULT_CLIENTS
from epochal.state.config.data_file import check_together, parse_data_config
from epochal.state.config.model_table import Muon
from epochal.state.config.state_file import StateFile, parse_state
from epochal.state.errors import InvalidInput
from epochal.tools.init.choices import LLAMAS, chosen_data, chosen_model, tokens_in_all
from epochal.tools.init.files import files_of
from epochal.tools.init.proposal import LEAST_S, MOST_LOSS
from epochal.tools.init.run_text import NewRun, checkpoint_every, state_text
from epochal.tools.model_size import ModelSize, size_notes
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients
from epochal.tools.quality import loss_factor, optimizer_of, shown_loss
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module
from tests.support.thinned import thinned

CLIENTS = "2 x 1gbit/1gbit 1ms 1M tokens/s"
TOKENS = 100_000


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "train.bin").write_bytes(bytes(2 * TOKENS))
    return folder


def state_in(folder: Path) -> StateFile:
    return parse_state((folder / "state.toml").read_text(), "state.toml")


def test_defaults_make_a_file_that_check_takes_without_warnings(tmp_path: Path) -> None:
    run_main("init", str(tmp_path / "My Run!")).expect(0, "epochal coordinator")
    assert state_in(tmp_path / "My Run!").run_id == "my-run"
    batch = "# samples of a round: at most local_steps times the critical batch (arXiv:2410.21676)"
    assert batch in (tmp_path / "My Run!" / "state.toml").read_text()
    checked = run_main("check", str(tmp_path / "My Run!" / "state.toml"))
    checked.expect(0, "is valid")
    assert "note:" not in checked.err
    planned = run_main("plan", str(tmp_path / "My Run!" / "state.toml"), "--clients", DEFAULT_CLIENTS, "--no-advice")
    planned.expect(0, "to the end")
    assert "warnings  " not in planned.out


def test_made_up_data_are_said_to_be_random_and_how_to_have_others(tmp_path: Path) -> None:
    ran = run_main("init", str(tmp_path / "run"))
    ran.expect(0, "The data are random bytes", "epochal prepare TEXT.txt --tokenizer bytes --out data")
    assert "# random bytes: nothing can be learnt" in (tmp_path / "run" / "state.toml").read_text()


@pytest.mark.nightly
def test_commands_that_it_says_for_text_make_a_run_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TEXT.txt").write_text("words to learn from\n" * 4000)
    said = run_main("init", "run").out
    commands = [
        line.split()[1:] for line in said.splitlines() if line.startswith(("  epochal prepare", "  epochal init"))
    ]
    assert [command[0] for command in commands] == ["prepare", "init"]
    for command in commands:
        run_main(*command).expect(0)
    run_main("check", "OTHER_DIR/state.toml", "--data-config", "OTHER_DIR/data.toml").expect(0, "is valid")


def test_optimizer_that_is_asked_for_is_written(tmp_path: Path) -> None:
    run_main("init", str(tmp_path / "run"), "--optimizer", "muon", "--verify", "10").expect(0)
    assert isinstance(state_in(tmp_path / "run").model.LLM.optimizer, Muon)
    run_main("check", str(tmp_path / "run" / "state.toml")).expect(0, "is valid")


def test_codec_that_loses_much_is_refused_with_its_price(tmp_path: Path) -> None:
    run_main("init", str(tmp_path / "run"), "--codec", "float32").expect(0)
    assert state_in(tmp_path / "run").merge.codec == "float32"
    refused = run_main("init", str(tmp_path / "other"), "--codec", "sparse")
    refused.expect(2, "--codec 'sparse', loss + 3.9 %; allowed: ")
    assert not (tmp_path / "other").exists()


def test_settings_of_a_codec_are_written_with_it() -> None:
    fields = {"codec": "sparse", "error_feedback": True, "mean": "senders", "outer_lr": 1.0, "outer_momentum": 0.0}
    run = NewRun("run", chosen_model("ngram", 256, 64), chosen_data("dummy", 2, "host:1"), 64, fields, "open")
    merge = files_of(run, [parse_clients(CLIENTS)], PlanOptions(), 2).proposal.state.merge
    assert {name: getattr(merge, name) for name in fields} == fields


@pytest.mark.parametrize("verify", [None, 10])
def test_room_for_blobs_is_enough_for_check(verify: int | None) -> None:
    need_module("transformers")
    data, codec = chosen_data("dummy", 2, "host:1"), {"codec": "int2", "error_feedback": True}
    run = NewRun("run", chosen_model("llama-1b", 256, 64), data, 64, codec, "open", verify=verify)
    groups, options = [parse_clients("16 x 100mbit/20mbit 40ms 8k tokens/s")], PlanOptions(most_played=4)
    state = files_of(run, groups, options, 2, total_tokens=20 * 10**9).proposal.state
    assert state.config.checkpoint_every > 3
    assert size_notes(ModelSize.of(state.model.LLM.spec, state.merge), state) == []


SLOW = "4 x 8mbit/2mbit 40ms 100k tokens/s"
TWO_BITS = {"codec": "int2", "error_feedback": True}
SPARSE = {"codec": "sparse", "error_feedback": True, "mean": "senders", "outer_lr": 1.0, "outer_momentum": 0.0}


@pytest.mark.parametrize(
    ("clients", "smaller", "codec"),
    [
        pytest.param(SLOW, [TWO_BITS], "int2", id="long-uploads"),
        pytest.param("4 x 1gbit/1gbit 1ms 100k tokens/s", [TWO_BITS], "int4", id="short-uploads"),
        pytest.param(SLOW, [SPARSE], "int4", id="loses-much", marks=pytest.mark.nightly),
        pytest.param(SLOW, [{"codec": "int8"}], "int4", id="trains-less", marks=pytest.mark.nightly),
        pytest.param(SLOW, [], "int4", id="none"),
    ],
)
def test_smaller_codec_is_taken_where_it_lets_clients_train_more(
    clients: str, smaller: list[dict[str, Any]], codec: str
) -> None:
    model = chosen_model("llama-6m", 256, 64)
    run = NewRun("run", model, chosen_data("dummy", 2, "host:1"), 64, {"codec": "int4"}, "open")
    others = [replace(run, codec=other) for other in smaller]
    proposal = files_of(run, [parse_clients(clients)], PlanOptions(), 2, others=others).proposal
    assert proposal.state.merge.codec == codec
    assert (proposal.plan.loss or 2) <= MOST_LOSS


@pytest.mark.parametrize(
    ("model", "options", "optimizer"),
    [
        pytest.param("llama-6m", (), "Muon", id="torch-model"),
        pytest.param("llama-6m", ("--optimizer", "AdamW"), "AdamW", id="asked-for", marks=pytest.mark.nightly),
        pytest.param("ngram", (), "AdamW", id="embedded-model", marks=pytest.mark.nightly),
        pytest.param("llama-6m", ("--verify", "5"), "Muon", id="verified", marks=pytest.mark.nightly),
    ],
)
def test_muon_with_its_longer_rounds_is_taken_where_clients_train_little(
    tmp_path: Path, model: str, options: tuple[str, ...], optimizer: str
) -> None:
    slow = ("--model", model, "--seq-len", "64", "--clients", "4 x 8mbit/2mbit 40ms 400k tokens/s")
    ran = run_main("init", str(tmp_path / "run"), *slow, *options)
    ran.expect(0)
    state = state_in(tmp_path / "run")
    assert optimizer_of(state) == optimizer
    is_longer = optimizer == "Muon" and not options
    assert (state.merge.local_steps == 100) == is_longer
    assert ("the optimizer is Muon, " in ran.out) == (optimizer == "Muon")
    assert ("so that rounds may be longer" in ran.out) == is_longer


@pytest.mark.nightly
def test_codec_is_int4_where_it_is_asked_for_or_results_are_repeated(tmp_path: Path) -> None:
    slow = ("--model", "llama-6m", "--seq-len", "64", "--clients", SLOW)
    for options, codec in (((), "int2"), (("--codec", "int4"), "int4"), (("--verify", "5"), "int4")):
        folder = tmp_path / "-".join(("run", *options))
        ran = run_main("init", str(folder), *slow, *options)
        ran.expect(0)
        assert state_in(folder).merge.codec == codec
        assert ("results are int2, so that clients train more of the time" in ran.out) == (codec == "int2")


def test_folder_of_tokens_gets_a_data_file_that_fits(tmp_path: Path, tokens: Path) -> None:
    run_main(
        *("init", str(tmp_path / "run"), "--data", str(tokens), "--data-address", "data.example:39405"),
        *("--seq-len", "128", "--clients", CLIENTS, "--tokens", "3 passes"),
    ).expect(0)
    state = state_in(tmp_path / "run")
    data = parse_data_config((tmp_path / "run" / "data.toml").read_text(), "data.toml")
    check_together(state, "state.toml", data, "data.toml")
    assert data.token_size is not None
    assert (Path(data.dir), data.token_size.size_bytes, data.seq_len) == (tokens.resolve(), 2, 128)
    assert data.shuffle_seed is not None
    batches = state.config.total_steps * state.config.global_batch_size_end
    assert 3 * TOKENS <= batches * 128 < 3 * TOKENS + state.config.global_batch_size_end * 128
    assert state.config.init_min_clients == 2


def test_file_fits_the_lines_of_the_clients(tmp_path: Path) -> None:
    for name, clients in (("fast", CLIENTS), ("slow", "2 x 800kbit/100kbit 300ms 200 tokens/s")):
        run_main("init", str(tmp_path / name), "--clients", clients).expect(0)
    fast, slow = state_in(tmp_path / "fast").config, state_in(tmp_path / "slow").config
    assert slow.max_round_train_time > fast.max_round_train_time


@pytest.mark.nightly
def test_run_with_days_between_checkpoints_is_written_as_it_was_planned(tmp_path: Path) -> None:
    slow = ("--model", "llama-300m", "--vocabulary", "50257", "--tokens", "1B")
    run_main("init", str(tmp_path), *slow, "--clients", "4 x 1mbit/0.2mbit 300ms 90k tokens/s").expect(0)
    assert state_in(tmp_path).config.epoch_time > 1_000_000


@given(st.integers(1, 10**9))
def test_timers_are_written_with_every_digit(seconds: int) -> None:
    run = NewRun("run", chosen_model("ngram", 256, 64), chosen_data("dummy", 2, "host:1"), 64, {}, "open")
    timers = dict.fromkeys(LEAST_S, seconds) | {"epoch_time": seconds}
    sizes = dict.fromkeys(("min_clients", "init_min_clients", "total_steps", "checkpoint_every"), 1)
    config = timers | sizes | {"global_batch_size_start": 8, "global_batch_size_end": 8}
    text = state_text(run, {"config": config, "merge": {"local_steps": 8}, "blobs": {}})
    written = tomllib.loads(text)["config"]
    assert {name: written[name] for name in config} == config


@pytest.mark.nightly
def test_run_that_hardly_trains_is_announced_before_its_files_are_named(tmp_path: Path) -> None:
    slow = ("--clients", "2 x 8mbit/100kbit 300ms 1M tokens/s")
    ran = run_main("init", str(tmp_path / "run"), *slow)
    ran.expect(0, "what would change it (")
    assert ran.out.startswith("clients of this run train ")
    assert ran.out.index("what would change it (") < ran.out.index("wrote ")


def test_local_steps_that_are_asked_for_are_written(tmp_path: Path) -> None:
    run_main("init", str(tmp_path / "run"), "--local-steps", "100").expect(0)
    assert state_in(tmp_path / "run").merge.local_steps == 100
    assert "a small model: loss + 5.2 % beside one machine with AdamW" in (tmp_path / "run" / "state.toml").read_text()


def test_update_of_a_new_run_is_written_with_its_price(tmp_path: Path) -> None:
    run_main("init", str(tmp_path)).expect(0)
    merge = state_in(tmp_path).merge
    price = shown_loss(loss_factor(merge.model_copy(update={"update": "exact"}), merge))
    note = f'# of what all clients receive; a small model: {price} beside "exact"'
    assert "measured" not in price
    assert f'\n# update = "{merge.update}"                       {note}\n' in (tmp_path / "state.toml").read_text()


def test_run_by_invitation_has_one_that_the_command_shows(tmp_path: Path) -> None:
    ran = run_main("init", str(tmp_path), "--access", "invitations")
    ran.expect(0, "--invitation ")
    assert len(state_in(tmp_path).access.invitations) == 1
    code = ran.out.partition("--invitation ")[2].split()[0]
    assert code not in (tmp_path / "state.toml").read_text()


@pytest.mark.parametrize("codec", ["float32", "int8", "int4"])
def test_run_that_verifies_is_one_that_check_takes_without_notes(tmp_path: Path, tokens: Path, codec: str) -> None:
    ran = run_main("init", str(tmp_path / "run"), "--data", str(tokens), "--verify", "10", "--codec", codec)
    ran.expect(0, "epochal token verifier runs/run", "EPOCHAL_VERIFIER_TOKEN=… epochal verifier http://127.0.0.1:8000 ")
    state = state_in(tmp_path / "run")
    assert state.verify is not None
    assert (state.verify.percent, state.merge.codec, state.merge.inner_state) == (10, codec, "reset")
    files = (str(tmp_path / "run" / "state.toml"), "--data-config", str(tmp_path / "run" / "data.toml"))
    checked = run_main("check", *files)
    checked.expect(0, "is valid")
    assert "note:" not in checked.err


def test_run_that_verifies_is_refused_codecs_that_cannot_be_repeated(tmp_path: Path) -> None:
    refused = run_main("init", str(tmp_path / "run"), "--verify", "5", "--codec", "int2")
    refused.expect(2, "--codec 'int2', which needs error feedback: such", "allowed: float32, int8, int4")
    assert "not measured" not in refused.err


@pytest.mark.nightly
def test_run_that_verifies_is_refused_what_cannot_be_repeated(tmp_path: Path) -> None:
    verified = ("init", str(tmp_path / "run"), "--verify", "5")
    run_main(*verified, "--local-steps", "101").expect(
        2, "`local_steps = 100, or fewer` where results are computed again"
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 256, "attn_pdrop": 0.1}))
    need_module("transformers")
    run_main(*verified, "--model", str(config)).expect(2, "model.LLM.hf.attn_pdrop", "`attn_pdrop = 0.0`")
    assert not (tmp_path / "run").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("mine")
    run_main("init", str(tmp_path)).expect(2, "data.toml exists")
    assert [path.name for path in tmp_path.iterdir()] == ["data.toml"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "/nowhere"), "no such folder"),
        (("--data", "name://x"), "give a folder or dummy"),
        (("--vocabulary", "300", "--model", "ngram"), "--model ngram knows 256 tokens"),
        (("--model", "gpt-9"), "allowed: ngram, llama-6m"),
        (("--clients", "many"), "'many'"),
        (("--tokens", "lots"), "--tokens 'lots'"),
        (("--tokens", "2 passes"), "size of these data is not known"),
        (("--token-size", "3"), "allowed: 2 or 4"),
        (("--access", "keys"), "--allow-key KEY"),
        (("--allow-key", "ab" * 32), "goes with --access keys"),
        (("--access", "keys", "--allow-key", "xyz"), "access.keys"),
    ],
)
def test_mistake_is_named_and_nothing_is_written(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    run_main("init", str(tmp_path / "run"), *options).expect(2, message)
    assert not (tmp_path / "run" / "state.toml").exists()


def test_config_of_another_model_is_taken_if_it_knows_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3", "vocab_size": 1000}))
    assert chosen_model(str(path), 1000, 64).architecture == "HfAuto"
    with pytest.raises(InvalidInput, match="knows 1000 tokens"):
        chosen_model(str(path), 1001, 64)


@pytest.mark.parametrize("name", LLAMAS)
def test_named_llama_has_about_as_many_parameters_as_it_says(name: str) -> None:
    hf = chosen_model(name, 32_000, 1024).hf
    assert hf is not None
    width, inner, layers = hf["hidden_size"], hf["intermediate_size"], hf["num_hidden_layers"]
    heads = width // hf["num_attention_heads"]
    count = layers * (2 * width * width + 2 * width * heads * hf["num_key_value_heads"] + 3 * width * inner)
    said = float(name.removeprefix("llama-")[:-1]) * {"m": 1e6, "b": 1e9}[name[-1]]
    assert 0.9 < count / said < 1.1


def test_tokens_are_numbers_or_passes(tokens: Path) -> None:
    data = chosen_data(str(tokens), 2, "127.0.0.1:1")
    assert tokens_in_all("1.5 passes", data) == 150_000
    assert tokens_in_all("10B", data) == 10_000_000_000


def test_name_that_no_run_may_have_is_refused_before_files_are_written(tmp_path: Path) -> None:
    run_main("init", str(tmp_path / "run"), "--run-id", "../up").expect(2, "--run-id '../up'; allowed:")
    assert not (tmp_path / "run").exists()


def test_data_that_can_be_opened_are_pinned(tmp_path: Path, tokens: Path) -> None:
    run_main("init", str(tmp_path / "run"), "--data", str(tokens), "--seq-len", "64").expect(0)
    state, data = tmp_path / "run" / "state.toml", tmp_path / "run" / "data.toml"
    shown = json.loads(run_main("data", "inspect", str(data), "--json").out)
    assert state_in(tmp_path / "run").config.data_fingerprint == shown["fingerprint"]
    run_main("check", str(state), "--data-config", str(data)).expect(0, "is valid")
    (tokens / "train.bin").write_bytes(bytes(4 * TOKENS))
    run_main("check", str(state), "--data-config", str(data)).expect(2, "config.data_fingerprint pins")


def test_data_that_cannot_be_opened_leave_a_comment_that_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        location = f"http://127.0.0.1:{unused.getsockname()[1]}/tokens.bin"
    ran = run_main("init", str(tmp_path / "run"), "--data", location)
    ran.expect(0, "state.toml does not say which data are the run's")
    text = (tmp_path / "run" / "state.toml").read_text()
    assert '# data_fingerprint = "…"' in text
    assert state_in(tmp_path / "run").config.data_fingerprint is None
    checked = run_main("check", str(tmp_path / "run" / "state.toml"))
    checked.expect(0, "everybody may join this run", "epochal fingerprint URL FINGERPRINT")


@pytest.mark.nightly
@thinned("place", ["made", "made/train"], kept=1)
def test_what_prepare_made_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TEXT.txt").write_text("words to learn from\n" * 4000)
    run_main("prepare", "TEXT.txt", "--tokenizer", "bytes", "--out", "made", "--seq-len", "64").expect(0)
    run_main("init", "run", "--data", place).expect(0)
    made, state = state_in(Path("made")), state_in(Path("run"))
    assert state.model.LLM.max_seq_len == 64
    assert state.model.LLM.tokenizer == made.model.LLM.tokenizer
    assert state.model.LLM.tokenizer is not None
    run_main("check", "run/state.toml", "--data-config", "run/data.toml").expect(0, "is valid")
    run_main("init", "other", "--data", place, "--vocabulary", "300").expect(2, "made these data with 256")


@pytest.mark.nightly
def test_tokens_that_the_vocabulary_lacks_are_refused_first(tmp_path: Path, tokens: Path) -> None:
    (tokens / "more.bin").write_bytes((2047).to_bytes(2, "little") * 1000)
    refused = run_main("init", str(tmp_path / "run"), "--data", str(tokens))
    refused.expect(2, "more.bin holds the token 2047; --vocabulary 256 allows 0 to 255")
    assert not (tmp_path / "run").exists()
    run_main("init", str(tmp_path / "run"), "--data", str(tokens), "--vocabulary", "2048").expect(0)


@given(st.integers(20, 10**7))
def test_run_has_twenty_to_forty_checkpoints(total_steps: int) -> None:
    assert 20 <= total_steps // checkpoint_every(total_steps) <= 40
