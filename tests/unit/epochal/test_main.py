"""The `epochal` command itself: its commands, what it imports, its errors and exit codes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochal import __version__
from epochal.cli.lazy import LazyCommand
from epochal.cli.main import COMMANDS, DATA_COMMANDS, app
from tests.support.cli import heavy_imports_of, run_main

cli = CliRunner()


def after_help_of(*arguments: str) -> str:
    return (
        f"from epochal.cli.main import app\ntry:\n    app({[*arguments, '--help']!r})\nexcept SystemExit as end:\n"
        "    assert not end.code"
    )


def test_help_imports_nothing_heavy() -> None:
    assert heavy_imports_of(after_help_of()) == set()


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        ("check", {"pydantic"}),
        ("status", {"httpx", "pydantic"}),
        ("audit", {"cryptography", "numpy", "pydantic", "transitions"}),
        ("evaluate", {"cryptography", "httpx", "numpy", "pydantic", "transitions"}),
        ("client", {"cryptography", "httpx", "numpy", "pydantic", "transitions", "uvicorn"}),
    ],
)
def test_command_imports_only_what_it_needs(command: str, needed: set[str]) -> None:
    assert heavy_imports_of(after_help_of(command)) <= needed


@pytest.mark.parametrize("command", [*COMMANDS, *DATA_COMMANDS], ids=lambda command: command.name)
def test_summary_is_the_first_paragraph_of_the_docstring(command: LazyCommand) -> None:
    documented = (command.function().__doc__ or "").partition("\n\n")[0]
    assert command.summary == " ".join(documented.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_explains_every_command(command: LazyCommand) -> None:
    assert command.name in cli.invoke(app, ["--help"]).output
    explained = cli.invoke(app, [command.name, "--help"])
    assert explained.exit_code == 0
    assert f"Usage: epochal {command.name}" in explained.output


def test_misspelt_command_is_answered_with_the_nearest() -> None:
    ran = cli.invoke(app, ["aduit"])
    assert ran.exit_code == 2
    assert "Did you mean 'audit'?" in ran.output


def test_version_is_shown() -> None:
    assert cli.invoke(app, ["--version"]).output == f"epochal {__version__}\n"


def test_known_error_is_one_message_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = tmp_path / "journal" / "00000000.log"
    segment.parent.mkdir()
    segment.write_text("no journal")
    assert run_main(monkeypatch, "audit", str(tmp_path)) == 1
    told = f"epochal: {segment} is not a journal segment of this version\n"
    assert capsys.readouterr().err == told


def test_user_mistake_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "status", "127.0.0.1:8000") == 2
    assert "allowed: http://host:port" in capsys.readouterr().err
