"""`epochal token`: tokens that an operator gives to other programs of a run."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken, required_token
from epochal.cli.options.shared import STORE_VARIABLE, CoordinatorCaOption
from epochal.commands.operate.status import ask
from epochal.coordinator.auth.program_tokens import program_token_from
from epochal.state.messages.requests import ProgramKind

Source = Annotated[
    str,
    typer.Argument(
        metavar="STORE_OR_URL",
        envvar=STORE_VARIABLE,
        help="The coordinator's --store on this machine, or its address (http://… or https://…).",
    ),
]


def data_server(source: Source, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Print a token for `epochal data-server --token`; a coordinator's address needs the admin token."""
    _print_token("data-server", source, admin_token, tls_ca)


def checker(source: Source, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Print a token for `epochal checker --token`; a coordinator's address needs the admin token."""
    _print_token("checker", source, admin_token, tls_ca)


def verifier(source: Source, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Print a token for `epochal verifier --token`; a coordinator's address needs the admin token."""
    _print_token("verifier", source, admin_token, tls_ca)


def _print_token(kind: ProgramKind, source: str, admin_token: str | None, tls_ca: Path | None) -> None:
    if source.startswith(("http://", "https://")):
        made = ask(source, tls_ca, lambda operator: operator.program_token(kind), required_token(admin_token))
        typer.echo(made.token)
    else:
        typer.echo(asyncio.run(program_token_from(source, kind)))
