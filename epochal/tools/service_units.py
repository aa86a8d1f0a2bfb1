"""The files by which systemd and launchd run a client as a service of its user. Pure but for their folders.

The rule kept here: a file says the whole command, word for word, whatever characters are in it, and only its owner may
read it, because an invitation may be among the words.
"""

import plistlib
import re
import sys
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """How a system runs one service of its user.

    Attributes:
        path: of the service's file.
        enabling: the commands that start it now and with each of the user's sessions.
        disabling: the command that ends it, before its file is removed.
        showing: the command that shows how it does.
        advice: what its owner may want to know next.
        text: returns the file's bytes. Raises `InvalidInput` for a word that it cannot hold.
    """

    path: Path
    enabling: Sequence[Sequence[str]]
    disabling: Sequence[str]
    showing: Sequence[str]
    advice: str
    text: Callable[[ClientService], bytes]


def systemd(name: str) -> ServiceManager:
    """Return the user's own systemd, for the service of this name."""
    unit, systemctl = f"epochal-{name}.service", ("systemctl", "--user")
    return ServiceManager(
        path=Path.home() / ".config" / "systemd" / "user" / unit,
        enabling=((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", unit)),
        disabling=(*systemctl, "disable", "--now", unit),
        showing=(*systemctl, "status", "--no-pager", unit),
        advice=f"its log: journalctl --user -u {unit}; to run it also while you are logged out: "
        'loginctl enable-linger "$USER"',
        text=_unit,
    )


def launchd(name: str, user_id: int) -> ServiceManager:
    """Return macOS's launchd with the user's agents, for the service of this name."""
    label, domain = f"{LABEL}.{name}", f"gui/{user_id}"
    path = Path.home() / "Library" / "LaunchAgents" / f"{label}.plist"
    return ServiceManager(
        path=path,
        enabling=(("launchctl", "bootstrap", domain, str(path)),),
        disabling=("launchctl", "bootout", f"{domain}/{label}"),
        showing=("launchctl", "print", f"{domain}/{label}"),
        advice=f"its log: the file that {path} names",
        text=_property_list,
    )


def manager_of(platform: str, user_id: int, name: str) -> ServiceManager:
    """Return how a platform, by Python's name of it, runs a service. Raise `InvalidInput` if it cannot."""
    checked_name(name)
    if platform == "darwin":
        return launchd(name, user_id)
    if platform.startswith("linux"):
        return systemd(name)
    raise InvalidInput(f"services are made for systemd (Linux) and launchd (macOS), not on {platform}")


def client_words(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command of a client with these arguments, by this interpreter."""
    return (sys.executable, "-m", "epochal", "client", *arguments)


def _unit(service: ClientService) -> bytes:
    command, folder = " ".join(map(_systemd_word, service.words)), str(service.folder).replace("%", "%%")
    _check_lines((*service.words, folder))
    return (
        f"[Unit]\nDescription=Epochal client ({service.name})\nAfter=network-online.target\n\n"
        f"[Service]\nType=exec\nExecStart={command}\nWorkingDirectory={folder}\nRestart=on-failure\n"
        f"RestartSec={RESTART_AFTER_S}\nRestartPreventExitStatus=2\n"
        f"TimeoutStopSec={service.stop_bound_s}\nNoNewPrivileges=yes\n\n"
        "[Install]\nWantedBy=default.target\n"
    ).encode()


def _property_list(service: ClientService) -> bytes:
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


def _systemd_word(word: str) -> str:
    """Return a word of a command, quoted as systemd.service(5) has it: nothing in it is expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _check_lines(words: Sequence[str]) -> None:
    for word in words:
        if not word.isprintable():
            raise InvalidInput(f"{word[:60]!r}: allowed in a service: characters that can be printed")
