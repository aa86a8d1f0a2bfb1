"""`epochal coordinator`, as far as it comes without serving, and the stores that other commands read."""

from pathlib import Path

import pytest

from tests.support.cli import run_main
from tests.support.states import state_text


def test_coordinator_with_an_unsupported_file_starts_nothing_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state_text(model__LLM__checkpoint={"Hub": {"repo_id": "someone/model"}}))
    assert run_main(monkeypatch, "coordinator", str(state), "--store", str(tmp_path / "run")) == 2
    assert capsys.readouterr().err.startswith("epochal: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["audit", "evaluate"])
def test_store_that_holds_no_run_is_named_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run_main(monkeypatch, command, str(tmp_path)) == 2
    assert f"{tmp_path} holds no run; allowed: a run directory such as runs/RUN_ID" in capsys.readouterr().err


def test_store_of_an_unknown_kind_is_named_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state_text())
    assert run_main(monkeypatch, "coordinator", str(state), "--store", "postgresql://host/db") == 2
    told = "epochal: the store postgresql://host/db cannot be opened; allowed: a folder, or file:///PATH/OF/A/FOLDER\n"
    assert capsys.readouterr().err == told
