"""`epochal doctor`: whether this machine can train, and how it reaches a coordinator."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epochal.cli.options.admin_token import AdminToken, given_token
from epochal.cli.options.permission_options import PermissionOptions, permissions_in_words
from epochal.cli.options.shared import CoordinatorCaOption, JsonOption, coordinator_url, trusted
from epochal.cli.options.spool_folder import SpoolOption, checked_spool_folder
from epochal.cli.output.printing import run_to_end
from epochal.state.text.amounts import counted
from epochal.tools.doctor.connectivity import Asked, look_at_way
from epochal.tools.doctor.local_machine import Finding, look_at_machine

MARKS = {"ok": ("✓", "ok", "green"), "note": ("·", "note", "yellow"), "problem": ("✗", "problem", "bold red")}


def given_url(text: str | None) -> str | None:
    """Return the address as `coordinator_url` does; None where none is given."""
    return None if text is None else coordinator_url(text)


def doctor(
    allowed: PermissionOptions,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="Address of the coordinator whose run is to be joined.", callback=given_url
        ),
    ] = None,
    spool: SpoolOption = None,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether this machine can train, and the way to a coordinator (exit code 1 if there is a problem).

    Without a URL: Python, extras, GPU, memory, disk, and a test merge. With one also whether it answers, TLS, clock,
    and what its run needs. For each it says what to do.
    """
    permissions = allowed.permissions
    findings: list[Finding] = []
    if url is not None:
        shown = "\n".join(f"{name}: {text}" for name, text in permissions_in_words(permissions, None))
        findings.append(Finding("Run may use", "ok", shown))
    machine = look_at_machine(checked_spool_folder(spool))
    findings += machine.findings
    if not as_json:
        Console().print(_table(findings))  # before the network is asked, which may take a while

    async def look() -> None:
        assert url is not None
        asked = Asked(url.rstrip("/"), trusted(tls_ca), given_token(admin_token), permissions.reach)
        found = await look_at_way(asked, machine)
        findings.extend(found)
        if not as_json:
            Console().print(_table(found))

    if url is not None:
        run_to_end(look())
    if as_json:
        typer.echo(json.dumps([asdict(found) for found in findings], indent=2))
    problems = sum(found.verdict == "problem" for found in findings)
    if problems:
        typer.echo(f"{counted(problems, 'problem')}: see what to do above", err=True)
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for found in findings:
        mark, word, style = MARKS[found.verdict]
        shown = Text(found.found)
        if found.advice:
            shown.append(f"\n→ {found.advice}", style="italic")
        if found.kind:
            shown.append(f"\nsee: epochal explain {found.kind}", style="dim")
        table.add_row(Text(f"{mark} {word}", style=style), found.name, shown)
    return table
