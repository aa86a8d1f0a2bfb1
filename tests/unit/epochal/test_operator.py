"""The operator's commands, without a coordinator."""

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from tests.support.cli import run_main

cli = CliRunner()


def test_operator_command_without_a_token_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHAL_ADMIN_TOKEN", raising=False)
    ran = cli.invoke(app, ["pause", "http://127.0.0.1:9"])
    assert ran.exit_code == 2
    assert "EPOCHAL_ADMIN_TOKEN" in ran.output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["status", "http://127.0.0.1:65536"], "allowed: http://host:port"),
        (["pause", "http://127.0.0.1:9", "--admin-token", "ü"], "no admin token"),
        (["eject", "http://127.0.0.1:9", "../../pause", "--admin-token", "t"], "'../../pause' is no client id"),
    ],
)
def test_operator_input_that_cannot_be_right_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], message: str
) -> None:
    assert run_main(monkeypatch, *command) == 2
    assert message in capsys.readouterr().err
