"""The files by which systemd and launchd run a client as a service of its user. Pure but for their folders.

The rule kept here: a file says the whole command, word for word, whatever characters are in it, and only its owner may
read it, because an invitation may be among the words.
"""

import plistlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epochal.state.errors import InvalidInput

RESTART_AFTER_S = 60
LABEL = "org.epochal"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)


def checked_name(name: str) -> str:
    """Return the name of a service. Raise `InvalidInput` unless it may be a part of a file's name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"--as {name[:60]!r}: allowed: 1 to 40 lower-case letters, digits and -, as in volunteer")
    return name


@dataclass(frozen=True, slots=True)
class ClientService:
    """A client that the system starts.

    Attributes:
        name: of the service.
        words: the command and its arguments.
        folder: in which it is started, so that relative paths are as they were.
        log: file of its log, where the system keeps none.
        stop_bound_s: seconds for which the system lets it finish its round when it is stopped, before it is ended.
    """

    name: str
    words: Sequence[str]
    folder: Path
    log: Path
    stop_bound_s: int


class Systemd:
    """systemd, as an instance of the user runs it."""

    tool = "systemctl"

    def path(self, name: str) -> Path:
        """Return where the unit lies."""
        return Path.home() / ".config" / "systemd" / "user" / f"epochal-{name}.service"

    def text(self, service: ClientService) -> bytes:
        """Return the unit. Raise `InvalidInput` for a word that no unit can hold."""
        command = " ".join(map(_systemd_word, service.words))
        folder = str(service.folder).replace("%", "%%")
        _check_lines((*service.words, folder))
        return (
            f"[Unit]\nDescription=Epochal client ({service.name})\nAfter=network-online.target\n\n"
            f"[Service]\nType=exec\nExecStart={command}\nWorkingDirectory={folder}\nRestart=on-failure\n"
            f"RestartSec={RESTART_AFTER_S}\nRestartPreventExitStatus=2\n"
            f"TimeoutStopSec={service.stop_bound_s}\nNoNewPrivileges=yes\n\n"
            "[Install]\nWantedBy=default.target\n"
        ).encode()

    def enabling(self, name: str) -> Sequence[Sequence[str]]:
        """Return the commands that start the service now and with each of the user's sessions."""
        unit = self.path(name).name
        return (("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", unit))

    def disabling(self, name: str) -> Sequence[Sequence[str]]:
        """Return the commands that end the service, before its file is removed."""
        return (("systemctl", "--user", "disable", "--now", self.path(name).name),)

    def showing(self, name: str) -> Sequence[str]:
        """Return the command that shows how the service does."""
        return ("systemctl", "--user", "status", "--no-pager", self.path(name).name)

    def advice(self, name: str) -> str:
        """Return what its owner may want to know next."""
        unit = self.path(name).name
        return (
            f"its log: journalctl --user -u {unit}; to run it also while you are logged out: "
            'loginctl enable-linger "$USER"'
        )


class Launchd:
    """launchd of macOS, as an agent of the user."""

    tool = "launchctl"

    def __init__(self, user_id: int) -> None:
        self._user_id = user_id

    def path(self, name: str) -> Path:
        """Return where the property list lies."""
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.{name}.plist"

    def text(self, service: ClientService) -> bytes:
        """Return the property list. Raise `InvalidInput` for a word that none can hold."""
        _check_lines(service.words)
        return plistlib.dumps(
            {
                "Label": f"{LABEL}.{service.name}",
                "ProgramArguments": list(service.words),
                "WorkingDirectory": str(service.folder),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": RESTART_AFTER_S,
                "ExitTimeOut": service.stop_bound_s,
                "StandardOutPath": str(service.log),
                "StandardErrorPath": str(service.log),
            }
        )

    def enabling(self, name: str) -> Sequence[Sequence[str]]:
        """Return the commands that start the service now and with each login."""
        return (("launchctl", "bootstrap", f"gui/{self._user_id}", str(self.path(name))),)

    def disabling(self, name: str) -> Sequence[Sequence[str]]:
        """Return the commands that end the service, before its file is removed."""
        return (("launchctl", "bootout", f"gui/{self._user_id}/{LABEL}.{name}"),)

    def showing(self, name: str) -> Sequence[str]:
        """Return the command that shows how the service does."""
        return ("launchctl", "print", f"gui/{self._user_id}/{LABEL}.{name}")

    def advice(self, name: str) -> str:
        """Return what its owner may want to know next."""
        return f"its log: the file that {self.path(name)} names"


Manager = Systemd | Launchd


def manager_of(platform: str, user_id: int) -> Manager:
    """Return the manager of services of a platform, by Python's name of it. Raise `InvalidInput` if it has none."""
    if platform == "darwin":
        return Launchd(user_id)
    if platform.startswith("linux"):
        return Systemd()
    raise InvalidInput(f"services are made for systemd (Linux) and launchd (macOS), not on {platform}")


def client_words(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command of a client with these arguments, by this interpreter."""
    return (sys.executable, "-m", "epochal", "client", *arguments)


def _systemd_word(word: str) -> str:
    """Return a word of a command, quoted as systemd.service(5) has it: nothing in it is expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _check_lines(words: Sequence[str]) -> None:
    for word in words:
        if not word.isprintable():
            raise InvalidInput(f"{word[:60]!r}: allowed in a service: characters that can be printed")
