"""`epochal check`: every mistake in one report."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.cli.state_files import MAX_CONFIG_BYTES
from tests.support.states import state_text

cli = CliRunner()


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    path = tmp_path / "state.toml"
    path.write_text(state_text())
    return path


def test_check_of_a_good_file_exits_0(state_path: Path) -> None:
    ran = cli.invoke(app, ["check", str(state_path)])
    assert (ran.exit_code, ran.output) == (0, f"{state_path} is valid\n")


def test_check_reports_every_mistake_of_both_files_and_exits_2(tmp_path: Path) -> None:
    state, data = tmp_path / "state.toml", tmp_path / "data.toml"
    text = state_text(config__min_clients=-1, config__epoch_tyme=3, model__LLM__data_type="Finetuning")
    state.write_text(text)
    data.write_text('dir = "data"\ntoken_size = "ThreeBytes"\n')
    ran = cli.invoke(app, ["check", str(state), "--data-config", str(data)])
    assert ran.exit_code == 2
    for expected in (str(state), "config.min_clients", "epoch_tyme", "epoch_time", str(data), "token_size", "seq_len"):
        assert expected in ran.output


def test_check_of_two_files_that_do_not_fit_each_other_exits_2(tmp_path: Path) -> None:
    state, data = tmp_path / "state.toml", tmp_path / "data.toml"
    state.write_text(state_text(model__LLM__data_location={"Server": "127.0.0.1:9"}))
    data.write_text('dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 17\n')
    ran = cli.invoke(app, ["check", str(state), "--data-config", str(data)])
    assert ran.exit_code == 2
    assert "17" in ran.output
    assert "16" in ran.output


def test_check_names_what_this_version_does_not_carry_out(tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state_text(model__LLM__checkpoint={"Hub": {"repo_id": "someone/model"}}))
    ran = cli.invoke(app, ["check", str(state)])
    assert ran.exit_code == 2
    assert "model.LLM.checkpoint" in ran.output


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"run_id = ", b"#" * (MAX_CONFIG_BYTES + 1)])
def test_check_of_a_file_that_is_none_exits_2_and_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.toml"
    if content is not None:
        path.write_bytes(content)
    ran = cli.invoke(app, ["check", str(path)])
    assert ran.exit_code == 2
    assert str(path) in ran.output
