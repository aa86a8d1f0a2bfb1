"""Options that several commands have, and the settings that they take from the environment."""

import os
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.logs import LogFormat
from state.errors import InvalidInput

TRAINER_TOKEN_VARIABLE = "EPOCHAL_TRAINER_TOKEN"

LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Log as short lines of text or as JSON.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CoordinatorCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Trust this certificate, or these authorities (PEM), for the coordinator."),
]
TlsCertOption = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain in PEM, to serve HTTPS.")]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", help="Private key of --tls-cert, in PEM.")]
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="Folder or URL that keeps the run: the coordinator's --store.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Allow plain HTTP on an address that other machines can reach.")
]
MetricsHostOption = Annotated[
    str,
    typer.Option(
        "--metrics-host", help="Address of --metrics-port. Others than the default can be reached from other machines."
    ),
]


def trusted(tls_ca: Path | None) -> bool | str:
    """Return what to verify a server's certificate with: the system's authorities, or the given file's."""
    return True if tls_ca is None else str(tls_ca)


def trainer_token() -> str | None:
    """Return the training service's token from the environment, or None if the variable is not set.

    Raises:
        InvalidInput: The variable is empty or holds what no HTTP header can carry.
    """
    token = os.environ.get(TRAINER_TOKEN_VARIABLE)
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise InvalidInput(f"{TRAINER_TOKEN_VARIABLE} is empty, or no token; allowed: printable ASCII, or unset")
    return token
