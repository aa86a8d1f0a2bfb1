"""Secrets that files hold: `NAME_FILE` in the place of `NAME`."""

from pathlib import Path

import pytest

from epochal.cli.options.secret_files import MAX_SECRET_BYTES, SECRET_VARIABLES, take_secret_files
from epochal.cli.options.shared import STORE_VARIABLE
from epochal.state.errors import InvalidInput
from tests.support.drive.cli import run_main

FILE_VARIABLE = f"{STORE_VARIABLE}_FILE"


@pytest.mark.parametrize("name", SECRET_VARIABLES)
def test_variable_is_what_its_file_holds_without_the_newline(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"s3cret word \n")
    environment = {f"{name}_FILE": str(tmp_path / "secret"), "OTHER": "1"}
    take_secret_files(environment)
    assert environment == {name: "s3cret word ", "OTHER": "1"}


def test_empty_name_of_a_file_is_none_and_the_variable_stays() -> None:
    environment = {FILE_VARIABLE: "", STORE_VARIABLE: "runs"}
    take_secret_files(environment)
    assert environment[STORE_VARIABLE] == "runs"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds nothing"),
        (b"\n", "holds nothing"),
        (b"one\ntwo\n", "several lines"),
        (b"a\0b", "NUL"),
        (b"\xff\xfe", "no text"),
        (b"x" * (MAX_SECRET_BYTES + 1), "longer"),
    ],
)
def test_file_that_holds_no_secret_is_named_and_not_shown(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(InvalidInput, match=reason) as refused:
        take_secret_files({FILE_VARIABLE: str(tmp_path / "secret")})
    assert f"{FILE_VARIABLE}={tmp_path / 'secret'}" in refused.value.message
    assert "allowed: one line" in refused.value.message
    assert "one\ntwo" not in refused.value.message


def test_file_that_is_missing_ends_a_command_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "missing"))
    run_main("audit").expect(2, FILE_VARIABLE, "No such file")


def test_variable_and_its_file_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("runs")
    with pytest.raises(InvalidInput, match="both set"):
        take_secret_files({FILE_VARIABLE: str(tmp_path / "secret"), STORE_VARIABLE: "other"})


@pytest.mark.parametrize("command", [("audit",), ("runs",), ("token", "data-server")])
def test_commands_take_the_store_from_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "store").write_text(f"{tmp_path}/nothing-here\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv(STORE_VARIABLE, "")  # the command sets it in this process, and it must not stay
    run_main(*command).expect(2, "nothing-here")


def test_password_of_a_store_with_a_misspelt_scheme_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "postgressql://someone:pass@word@db.example/runs")
    ran = run_main("audit")
    ran.expect(2, "postgressql://someone:", "@db.example/runs")
    assert "pass" not in ran.err.replace("postgressql", "")
    assert "word" not in ran.err
