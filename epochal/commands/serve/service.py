"""`epochal service`: run a client as a service of this machine's user."""

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from epochal.cli.options.groups import flattened
from epochal.cli.options.owner_terms import OwnerTerms
from epochal.commands.serve.client import CLOSING_BOUND_S, STOP_BOUND_S, client
from epochal.runtime.files.durable_files import replace_file
from epochal.state.errors import InvalidInput
from epochal.tools.service_units import ClientService, ServiceManager, client_words, manager_of

TOOL_TIMEOUT_S = 300.0
"""To stop a service takes as long as its client needs to finish the round."""
STOP_SLACK_S = 10
STATE_FOLDER = Path(".local") / "state" / "epochal"
"""Below the home: keys and logs of services."""

NameOption = Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the service; one for each run.")]
ArgumentsArgument = Annotated[
    list[str],
    typer.Argument(metavar="URL [OPTIONS]...", help="Address of the coordinator, and the options of `epochal client`."),
]


def install(arguments: ArgumentsArgument, name: NameOption = "volunteer") -> None:
    """Write a service that runs `epochal client` with these options, and start it where systemd or launchd runs.

    It is the user's own: no administrator is needed. It starts with the user's sessions, again after a failure, and
    finishes its round when it is stopped. Without `--key` it gets a key of its own, so that it keeps its place in the
    run. Variables of the environment, as for tokens, are not taken over.
    """
    manager, home = _manager(name), Path.home() / STATE_FOLDER
    chosen = _checked(arguments)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if chosen.get("key") is None:
        arguments = [*arguments, "--key", str(home / f"{name}.key"), "--new-key"]
    stop_s = math.ceil(float(str(chosen["leave_bound_s"])) + CLOSING_BOUND_S + STOP_BOUND_S) + STOP_SLACK_S
    text = manager.text(ClientService(name, client_words(arguments), Path.cwd(), home / f"{name}.log", stop_s))
    manager.path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(manager.path, text, mode=0o600)
    typer.echo(f"wrote {manager.path}")
    _run(manager.enabling)
    typer.echo(manager.advice)


install.settings = {"ignore_unknown_options": True}  # type: ignore[attr-defined]


def remove(name: NameOption = "volunteer") -> None:
    """Stop a service, which finishes its round, and remove its file. Its key stays."""
    manager = _manager(name)
    if not manager.path.exists():
        raise InvalidInput(f"--as {name}: there is no service {manager.path}")
    _run((manager.disabling,))
    manager.path.unlink()
    typer.echo(f"removed {manager.path}")


def status(name: NameOption = "volunteer") -> None:
    """Show whether a service is installed, its command, and how it does."""
    manager = _manager(name)
    if not manager.path.exists():
        typer.echo(f"not installed: {manager.path}")
        raise typer.Exit(1)
    typer.echo(f"installed: {manager.path}")
    _run((manager.showing,))


def _manager(name: str) -> ServiceManager:
    return manager_of(sys.platform, os.getuid() if hasattr(os, "getuid") else 0, name)


def _checked(arguments: Sequence[str]) -> dict[str, object]:
    """Return the options of a client. A mistake in one is reported as the client itself would."""
    app = typer.Typer(add_completion=False)
    app.command("client")(flattened(client))
    chosen = get_command(app).make_context("epochal client", list(arguments)).params
    owner = OwnerTerms(*(chosen[field] for field in ("upload", "download", "hours", "when_idle")))
    owner.check_goes_with_mesh(chosen["mesh"])
    _ = owner.bandwidth, owner.terms
    return chosen


def _run(commands: Sequence[Sequence[str]]) -> None:
    """Run the commands and print what they say, or say which are next where they cannot be run here."""
    for number, command in enumerate(commands):
        reason = _failure_of(command)
        if reason is not None:
            rest = "; ".join(shlex.join(each) for each in commands[number:])
            typer.echo(f"not done ({reason}); next: {rest}")
            return


def _failure_of(command: Sequence[str]) -> str | None:
    """Run a command and print its output. Return why it could not be done, or None."""
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]} here"
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it has not ended within {TOOL_TIMEOUT_S:g} s"
    typer.echo(ran.stdout, nl=False)
    if ran.returncode == 0 or ran.stdout:  # a service that is stopped is shown with another code
        return None
    return (ran.stderr.strip() or f"exit code {ran.returncode}").splitlines()[0]
