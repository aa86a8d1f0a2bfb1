"""`epochal status | pause | resume | eject`: for the operator of a run."""

import os
from typing import Annotated

import typer
from rich.console import Console

from coordinator_client.operator import OperatorClient
from epochal.cli.options import CoordinatorCaOption, JsonOption
from epochal.display import status_panel

ADMIN_TOKEN_VARIABLE = "EPOCHAL_ADMIN_TOKEN"

Url = Annotated[str, typer.Argument(metavar="URL", help="Address of the coordinator, such as http://host:8000.")]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        help=f"Token that the coordinator printed at its first start. Better: set {ADMIN_TOKEN_VARIABLE}.",
    ),
]


def _token(given: str | None) -> str:
    token = given or os.environ.get(ADMIN_TOKEN_VARIABLE)
    if not token:
        raise typer.BadParameter(f"give --admin-token or set {ADMIN_TOKEN_VARIABLE}")
    return token


def status(
    url: Url,
    as_json: JsonOption = False,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Show a run: phase, progress, clients, loss."""
    with OperatorClient(url, tls_ca=tls_ca) as client:
        if as_json:
            typer.echo(client.status_json().decode())
        else:
            Console().print(status_panel(client.status()))


def pause(url: Url, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Pause a run: finish the round, save a checkpoint, and wait."""
    with OperatorClient(url, _token(admin_token), tls_ca) as client:
        client.pause()
    typer.echo("the run will pause after this round")


def resume(url: Url, admin_token: AdminToken = None, tls_ca: CoordinatorCaOption = None) -> None:
    """Let a paused run continue."""
    with OperatorClient(url, _token(admin_token), tls_ca) as client:
        client.resume()
    typer.echo("the run continues")


def eject(
    url: Url,
    client_id: Annotated[
        str, typer.Argument(metavar="CLIENT", help="Id of the client, or the beginning of it that `status` shows.")
    ],
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Remove a client from a run. Its key cannot join again."""
    with OperatorClient(url, _token(admin_token), tls_ca) as client:
        ejected = client.eject(client_id)
    typer.echo(f"client {ejected} was ejected")
