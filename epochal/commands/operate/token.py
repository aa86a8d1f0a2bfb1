"""`epochal token`: tokens that an operator gives to other programs of a run."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken
from epochal.cli.options.coordinators import OwnCoordinator
from epochal.cli.options.shared import STORE_VARIABLE, CoordinatorCaOption
from epochal.coordinator.auth.program_tokens import program_token_from
from epochal.state.messages.requests import ProgramKind


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The maker of a token: a run's store, or its coordinator."""

    source: Annotated[
        str,
        typer.Argument(
            metavar="STORE_OR_URL",
            envvar=STORE_VARIABLE,
            help="The coordinator's --store on this machine, or its address (http://… or https://…).",
        ),
    ]
    admin_token: AdminToken = None
    tls_ca: CoordinatorCaOption = None

    def show(self, kind: ProgramKind) -> None:
        """Print a new token."""
        if self.source.startswith(("http://", "https://")):
            coordinator = OwnCoordinator(self.source, self.tls_ca, self.admin_token)
            typer.echo(coordinator.order(lambda operator: operator.program_token(kind)).token)
        else:
            typer.echo(asyncio.run(program_token_from(self.source, kind)))


def data_server(source: TokenSource) -> None:
    """Print a token for `epochal data-server --token`; a coordinator's address needs the admin token."""
    source.show("data-server")


def checker(source: TokenSource) -> None:
    """Print a token for `epochal checker --token`; a coordinator's address needs the admin token."""
    source.show("checker")


def verifier(source: TokenSource) -> None:
    """Print a token for `epochal verifier --token`; a coordinator's address needs the admin token."""
    source.show("verifier")


def mirror(source: TokenSource) -> None:
    """Print a token for a mirror of the updates and checkpoints; a coordinator's address needs the admin token."""
    source.show("mirror")
