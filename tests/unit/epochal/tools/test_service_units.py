"""Services of users: systemd reads a unit as it was meant, and commands are said where they cannot be run."""

import plistlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.state.errors import InvalidInput
from epochal.tools.service_units import (
    ClientService,
    ServiceManager,
    checked_name,
    client_words,
    launchd,
    manager_of,
    systemd,
)

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=30)
TERMS = ("--hours", "22-07", "--upload", "10mbit", "--when-idle", "--nice")
URL = "http://127.0.0.1:8000"


def service(*words: str) -> ClientService:
    return ClientService("volunteer", words, Path("/tmp"), Path("/tmp/volunteer.log"), 100)


def read_words(command: str) -> list[str]:
    """Return the words of a command as systemd.service(5) and systemd.syntax(7) read it, for words in double quotes."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"(?: |$)', command)
    return [re.sub(r"\\(.)", r"\1", word).replace("%%", "%").replace("$$", "$") for word in words]


@given(st.lists(PRINTABLE, min_size=1, max_size=6))
def test_unit_says_every_word_of_the_command(words: list[str]) -> None:
    text = systemd("lab").text(service("/usr/bin/python3", *words)).decode()
    (command,) = re.findall("^ExecStart=(.*)$", text, re.M)
    assert read_words(command) == ["/usr/bin/python3", *words]


@given(st.lists(PRINTABLE, min_size=1, max_size=6))
def test_property_list_says_every_word_of_the_command(words: list[str]) -> None:
    assert plistlib.loads(launchd("lab", 501).text(service(*words)))["ProgramArguments"] == words


@pytest.mark.parametrize("word", ["a\nExecStart=/bin/sh", "\x00", "\x1b[31m"])
@pytest.mark.parametrize("manager", [systemd("lab"), launchd("lab", 501)])
def test_word_with_a_line_end_is_refused(manager: ServiceManager, word: str) -> None:
    with pytest.raises(InvalidInput, match="characters that can be printed"):
        manager.text(service("/usr/bin/python3", word))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    unit = tmp_path / "epochal-volunteer.service"
    unit.write_bytes(systemd("lab").text(service(*client_words((URL, *TERMS, "--name", 'my $HOME "lab" 50 % \\ ; x')))))
    ran = subprocess.run(
        ("systemd-analyze", "--user", "verify", str(unit)), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, on a machine without systemd's and launchd's tools."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path


@pytest.mark.parametrize("before", [0, 1, 3, 1 + len(TERMS)])
def test_install_writes_a_private_unit_and_says_the_next_command(home: Path, before: int) -> None:
    words = [URL, *TERMS, "--invitation", "secret"]
    ran = CliRunner().invoke(app, ["service", "install", *words[:before], "--as", "lab", *words[before:]])
    assert ran.exit_code == 0, ran.output
    path = home / ".config/systemd/user/epochal-lab.service"
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert f'"client" "{URL}" "--hours" "22-07" "--upload" "10mbit" "--when-idle" "--nice"' in text
    assert f'"--key" "{home}/.local/state/epochal/lab.key" "--new-key"' in text
    assert "TimeoutStopSec=103" in text
    assert "not done (there is no systemctl here); next: systemctl --user daemon-reload; systemctl" in ran.output
    assert CliRunner().invoke(app, ["service", "status", "--as", "lab"]).exit_code == 0
    assert CliRunner().invoke(app, ["service", "remove", "--as", "lab"]).exit_code == 0
    assert not path.exists()
    assert CliRunner().invoke(app, ["service", "status", "--as", "lab"]).exit_code == 1


def test_install_keeps_the_key_that_is_named(home: Path) -> None:
    CliRunner().invoke(app, ["service", "install", URL, "--key", "me.key"])
    text = (home / ".config/systemd/user/epochal-volunteer.service").read_text()
    assert text.count('"--key"') == 1


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("install", URL, "--hours", "25-1"), "--hours '25-1'"),
        (("install", URL, "--upload", "fast"), "--upload 'fast': allowed: a number and a unit"),
        (("install", "--as", "../x", URL), "--as '../x': allowed: 1 to 40"),
        (("remove",), "there is no service"),
    ],
)
def test_mistake_in_a_service_is_said_when_it_is_installed(arguments: tuple[str, ...], message: str) -> None:
    ran = CliRunner().invoke(app, ["service", *arguments])
    assert isinstance(ran.exception, InvalidInput)
    assert message in ran.exception.message


def test_platforms_have_their_managers() -> None:
    assert manager_of("linux", 1000, "lab").path.name == "epochal-lab.service"
    of_macos = manager_of("darwin", 501, "lab")
    assert of_macos.enabling == (("launchctl", "bootstrap", "gui/501", str(of_macos.path)),)
    assert of_macos.disabling == ("launchctl", "bootout", "gui/501/org.epochal.lab")
    with pytest.raises(InvalidInput, match="not on win32"):
        manager_of("win32", 0, "lab")
    assert checked_name("my-run") == "my-run"
