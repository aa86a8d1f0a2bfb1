"""`epochal trainer-service`: its options."""

import importlib.util

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from state.errors import InvalidInput
from tests.support.cli import run_main

cli = CliRunner()


def test_help_names_the_extra_that_an_option_needs() -> None:
    shown = cli.invoke(app, ["trainer-service", "--help"], env={"COLUMNS": "200"})
    assert "epochal[tinker]" in shown.output


@pytest.mark.parametrize(
    ("options", "installed", "message"),
    [
        (["--weights-dir", "weights"], True, "--weights-dir goes with --tinker"),
        (["--tinker"], False, "install epochal[tinker]"),
        (["--tinker", "--weights-dir", __file__], True, "is not a folder"),
    ],
)
def test_trainer_service_option_that_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    installed: bool,
    message: str,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert run_main(monkeypatch, "trainer-service", *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", " ", "a\n", "\u00e9"])
def test_token_that_protects_nothing_or_cannot_be_sent_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_TRAINER_TOKEN", token)
    for arguments in (
        ("trainer-service", "--port", "0", "--max-sessions", "1", "--tls-cert", "nowhere"),
        (
            "client",
            "http://127.0.0.1:9",
            "--trainer",
            "remote",
            "--trainer-url",
            "http://127.0.0.1:9",
            "--reconnect",
            "1",
        ),
    ):
        ran = cli.invoke(app, arguments)
        assert isinstance(ran.exception, InvalidInput), "which the command line ends with 2"
        assert "EPOCHAL_TRAINER_TOKEN is empty, or no token" in ran.exception.message
