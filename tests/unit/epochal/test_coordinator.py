"""`epochal coordinator`, as far as it comes without serving."""

from pathlib import Path

import pytest

from tests.support.cli import run_main
from tests.support.states import state_text


def test_coordinator_with_an_unsupported_file_starts_nothing_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state_text(model__LLM__checkpoint={"Hub": {"repo_id": "someone/model"}}))
    assert run_main(monkeypatch, "coordinator", str(state), "--run-dir", str(tmp_path / "run")) == 2
    assert capsys.readouterr().err.startswith("epochal: ")
    assert not (tmp_path / "run").exists()
