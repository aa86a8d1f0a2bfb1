"""`epochal token`: tokens that an operator gives to other programs of a run."""

import asyncio
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken, required_token
from epochal.cli.options.shared import STORE_VARIABLE, CoordinatorCaOption
from epochal.commands.operate.status import ask
from epochal.coordinator.auth.data_server_tokens import (
    checker_token_from,
    data_server_token_from,
    verifier_token_from,
)

Source = Annotated[
    str,
    typer.Argument(
        metavar="STORE_OR_URL",
        envvar=STORE_VARIABLE,
        help="The coordinator's --store on this machine, or its address (http://… or https://…).",
    ),
]


def data_server(
    source: Source,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Print a token for `epochal data-server --token`; a coordinator's address needs the admin token."""
    if source.startswith(("http://", "https://")):
        made = ask(source, tls_ca, lambda operator: operator.data_server_token(), required_token(admin_token))
        typer.echo(made.token)
    else:
        typer.echo(asyncio.run(data_server_token_from(source)))


def checker(source: Source, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Print a token for `epochal checker --token`; a coordinator's address needs the admin token."""
    if source.startswith(("http://", "https://")):
        made = ask(source, tls_ca, lambda operator: operator.checker_token(), required_token(admin_token))
        typer.echo(made.token)
    else:
        typer.echo(asyncio.run(checker_token_from(source)))


def verifier(source: Source, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Print a token for `epochal verifier --token`; a coordinator's address needs the admin token."""
    if source.startswith(("http://", "https://")):
        made = ask(source, tls_ca, lambda operator: operator.verifier_token(), required_token(admin_token))
        typer.echo(made.token)
    else:
        typer.echo(asyncio.run(verifier_token_from(source)))
