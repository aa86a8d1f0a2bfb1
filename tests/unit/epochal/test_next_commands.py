"""The commands that start a new run fit its files: who can reach them, over what, and what computes."""

import shlex
from pathlib import Path

import pytest

from epochal.state.config.state_file import StateFile, parse_state
from epochal.state.config.verify_table import VerifyConfig
from epochal.tools.init.next_commands import next_commands
from tests.support.data.states import state_file
from tests.support.deployment import parsed_command
from tests.support.drive.cli import run_main
from tests.support.heavy import need_module

STATE = (Path(__file__).parents[3] / "examples/states/tcp/state.toml").read_text(encoding="utf-8")
STATE_PATH, DATA_PATH = Path("run/state.toml"), Path("run/data.toml")
ADDRESS = "127.0.0.1:39406"


def state_served_at(address: str) -> StateFile:
    assert STATE.count(f'"{ADDRESS}"') == 1
    return parse_state(STATE.replace(ADDRESS, address), "state.toml")


@pytest.mark.parametrize(
    ("address", "listening", "joining"),
    [
        (ADDRESS, "", "http://127.0.0.1:8000 --key me.key --new-key"),
        (
            "tls://a.example:39405",
            " --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem",
            "https://a.example:8000 --key me.key --new-key",
        ),
        (
            "tls://localhost:39405",
            " --tls-cert cert.pem --tls-key key.pem",
            "https://localhost:8000 --key me.key --new-key --tls-ca cert.pem",
        ),
        ("a.example:39405", " --host 0.0.0.0 --insecure", "http://a.example:8000 --key me.key --new-key --insecure"),
    ],
)
def test_commands_reach_where_the_data_server_is(address: str, listening: str, joining: str) -> None:
    assert next_commands(state_served_at(address), STATE_PATH, DATA_PATH) == [
        "epochal check run/state.toml --data-config run/data.toml",
        f"epochal coordinator run/state.toml --data-config run/data.toml{listening}",
        f"epochal client {joining}",
    ]


@pytest.mark.parametrize("address", [ADDRESS, "tls://a.example:39405", "[2001:db8::1]:39405"])
def test_commands_are_taken_by_the_command_line(address: str) -> None:
    state = state_served_at(address).model_copy(update={"verify": VerifyConfig()})
    for command in next_commands(state, Path("my run/state.toml"), DATA_PATH, "-code"):
        name, _ = parsed_command(shlex.split(command)[1:])
        assert name in command


def test_client_of_a_transformer_has_its_trainer_and_the_invitation(tmp_path: Path) -> None:
    need_module("transformers")
    written = ("--model", "llama-6m", "--seq-len", "64", "--vocabulary", "256", "--access", "invitations")
    ran = run_main("init", str(tmp_path / "run"), *written)
    ran.expect(0)
    client = next(line for line in ran.out.splitlines() if line.startswith("  epochal client "))
    assert " --trainer torch --invitation " in client


@pytest.mark.nightly
def test_run_whose_data_only_this_machine_reaches_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(bytes(20_000))
    made = ("init", "--data", str(tmp_path), "--seq-len", "64")
    run_main(*made, str(tmp_path / "here")).expect(0, "only this machine can reach the data")
    away = run_main(*made, str(tmp_path / "away"), "--data-address", "tls://a.example:39405")
    away.expect(0, "epochal client https://a.example:8000")
    assert "only this machine" not in away.out


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ({"Local": "my data"}, "'my data'"),
        ({"Preprocessed": "rows"}, "rows"),
        ({"WeightedHttp": "all/mix.json"}, "all"),
    ],
)
def test_client_of_a_run_on_local_data_allows_their_folder(location: dict[str, str], folder: str) -> None:
    state = state_file(model__LLM__data_location=location)
    assert next_commands(state, STATE_PATH, None)[2].endswith(f" --new-key --allow-local {folder}")
