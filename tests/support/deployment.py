"""The files of `deploy/` as the programs read them that people deploy with, and as `epochal` reads their commands."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from typer.main import get_command

from epochal.cli.main import app
from epochal.cli.options.secret_files import FILE_SUFFIX, SECRET_VARIABLES
from epochal.coordinator.api.operator_and_worker import health_routes
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.store.sql.database import GRACE_S, STATEMENT_S
from epochal.runtime.http.http_server import MAX_UNREAD_BYTES, SHUTDOWN_TIMEOUT_S
from epochal.runtime.metrics.metrics_registry import MetricsEndpoint

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

OTHER_VARIABLES = {"SSL_CERT_FILE", "TMPDIR"}
"""Variables that Python and OpenSSL read."""
COORDINATOR_ENDS_WITHIN_S = SHUTDOWN_TIMEOUT_S + 1 + 2 * (STATEMENT_S + GRACE_S)
"""Time from SIGTERM to a coordinator's end, where its database answers nothing any more."""
MEMBERS = 1_000
"""Number of members that the files are made for."""
BASE_BYTES = 130 * 1024**2
"""A coordinator's memory without members, with psycopg and obstore; docs/operations.md, "Sizing"."""
MEMBER_BYTES = 46 * 1024
COORDINATOR_BYTES = BASE_BYTES + MAX_UNREAD_BYTES + MEMBERS * MEMBER_BYTES
"""Memory that a coordinator may need."""


def parsed_command(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the command and its parameters as `epochal` itself reads them. Raise its error if they are wrong."""
    command: Any = get_command(app)
    context = command.make_context("epochal", list(arguments[:1]))
    name, rest = "epochal", list(arguments)
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
        if not hasattr(command, "commands"):
            context = command.make_context(name, rest, parent=context)
    return name, context.params


def probe_paths() -> set[str]:
    """Return the paths by which a coordinator tells how it is."""
    routes = health_routes(cast("Handlers", None), lambda: ()).routes
    return {cast("Any", route).path for route in routes} | {MetricsEndpoint.path}


def check_variables(names: Sequence[str]) -> list[str]:
    """Return the variables that no program reads."""
    known = {*SECRET_VARIABLES, *(f"{name}{FILE_SUFFIX}" for name in SECRET_VARIABLES), *OTHER_VARIABLES}
    return sorted(set(names) - known)


def files_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the absolute paths that a command's arguments name."""
    for argument in arguments:
        value = argument.rpartition("=")[2]
        if value.startswith("/"):
            yield value


def compose() -> dict[str, Any]:
    """Return the compose file, with the defaults of its variables."""
    text = (DEPLOY / "compose/compose.yaml").read_text(encoding="utf-8")
    return cast("dict[str, Any]", yaml.safe_load(re.sub(r"(?<!\$)\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)))


def unit(program: str) -> dict[str, list[str]]:
    """Return the settings of the systemd unit of a program, with their values in order."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / f"systemd/epochal-{program}@.service").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def substituted(text: str, *replacements: tuple[str, str | Callable[[re.Match[str]], str]]) -> str:
    """Return a text with each pattern replaced. Raise `AssertionError` if one is not found."""
    for pattern, replacement in replacements:
        text, count = re.subn(pattern, replacement, text)
        assert count, f"{pattern} is not in the file any more"
    return text


def size_bytes(text: str) -> int:
    """Return the number of bytes that `512M`, `1G` or `1Gi` mean; M and G of compose and systemd are powers of 1024."""
    found = re.fullmatch(r"([0-9]+)([KMG])i?", text)
    assert found is not None, text
    powers = {"K": 1024, "M": 1024**2, "G": 1024**3}
    return int(found[1]) * powers[found[2]]
