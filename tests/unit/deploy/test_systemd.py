"""`deploy/systemd`: what systemd itself says, and that the commands and credentials in the units are real."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from epochal.cli.main import EXIT_BAD_INPUT
from tests.support.bounds import BOUND_S
from tests.support.deployment import (
    COORDINATOR_BYTES,
    COORDINATOR_ENDS_WITHIN_S,
    DEPLOY,
    check_variables,
    parsed_command,
    size_bytes,
    substituted,
    unit,
)
from tests.support.heavy import need_program

PROGRAMS = ("coordinator", "data-server")
INSTALLED = "/opt/epochal/bin/epochal"
MOST_EXPOSED = "20"
"""Maximum exposure that `systemd-analyze security` may find, in tenths, of 100."""


def arguments_of(program: str) -> list[str]:
    """Return the words after the program's path, with the variable of an environment file filled in."""
    (line,) = unit(program)["ExecStart"]
    path, *arguments = line.replace("${COORDINATOR}", "https://coordinator.example.org").split()
    assert path == INSTALLED
    return arguments


def credentials_of(program: str) -> set[str]:
    """Return the names under which a unit's credentials lie in its folder."""
    return {value.partition(":")[0] for value in unit(program)["LoadCredential"]}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("verb", ["verify", "security"])
def test_systemd_accepts_the_unit(tmp_path: Path, program: str, verb: str) -> None:
    analyze = need_program("systemd-analyze")
    name = f"epochal-{program}@.service"
    text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(substituted(text, (INSTALLED, "/bin/true")), encoding="utf-8")
    options = {"verify": ["--recursive-errors=no"], "security": ["--offline=true", f"--threshold={MOST_EXPOSED}"]}
    command = [analyze, verb, *options[verb], "--no-pager", str(tmp_path / name)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [
        line for line in ran.stderr.splitlines() if name in line
    ] == []  # warnings about the unit, such as misspelt keys


@pytest.mark.parametrize("program", PROGRAMS)
def test_command_is_one_that_epochal_takes(program: str) -> None:
    command, parameters = parsed_command(arguments_of(program))
    assert command == program
    assert parameters["tls_cert"] == Path("%d/tls-cert")


@pytest.mark.parametrize("program", PROGRAMS)
def test_files_of_the_command_and_its_variables_are_credentials(program: str) -> None:
    words = [*arguments_of(program), *(word for line in unit(program)["Environment"] for word in line.split())]
    named = {word.rpartition("%d/")[2] for word in words if "%d/" in word}
    assert named == credentials_of(program)
    names = [word.partition("=")[0] for line in unit(program)["Environment"] for word in line.split()]
    assert check_variables(names) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_supervisor_does_what_exit_codes_ask_for(program: str) -> None:
    settings: Any = unit(program)
    assert (settings["Type"], settings["Restart"]) == (["notify"], ["on-failure"])
    assert settings["RestartPreventExitStatus"] == [str(EXIT_BAD_INPUT)]
    assert settings["StartLimitIntervalSec"] == ["0"]


def test_coordinator_has_the_memory_and_the_time_that_it_needs() -> None:
    settings = unit("coordinator")
    assert size_bytes(settings["MemoryMax"][0]) >= COORDINATOR_BYTES
    assert float(settings["TimeoutStopSec"][0]) >= COORDINATOR_ENDS_WITHIN_S
