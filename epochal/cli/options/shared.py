"""Options that several commands share, and the settings that they read from the environment."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.output.logs import LogFormat, start_logging
from epochal.runtime.connections.loopback import is_loopback
from epochal.state.config.file_urls import named_path
from epochal.state.errors import InvalidInput

TRAINER_TOKEN_VARIABLE = "EPOCHAL_TRAINER_TOKEN"
CHECKER_TOKEN_VARIABLE = "EPOCHAL_CHECKER_TOKEN"
VERIFIER_TOKEN_VARIABLE = "EPOCHAL_VERIFIER_TOKEN"
STORE_VARIABLE = "EPOCHAL_STORE"
DATA_SERVER_TOKEN_VARIABLE = "EPOCHAL_DATA_SERVER_TOKEN"
RUNS_FOLDER = Path("runs")
"""Folder for runs that are given no other place."""


def coordinator_url(text: str) -> str:
    """Return a coordinator's address as it may be copied: without a place on its page, and with a scheme."""
    address = text.strip().partition("#")[0].rstrip("/")
    if "://" in address or not _HOST_AND_PORT.fullmatch(address):
        return address
    host = address.rpartition(":")[0].strip("[]")
    return f"{'http' if is_loopback(host) else 'https'}://{address}"


_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
UrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="Address of the coordinator, such as http://host:8000.", callback=coordinator_url
    ),
]
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CoordinatorCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Trust this certificate, or these authorities (PEM), for the coordinator."),
]
TlsCertOption = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain in PEM, to serve HTTPS.")]
TlsKeyOption = Annotated[Path | None, typer.Option("--tls-key", help="Private key of --tls-cert, in PEM.")]


def local_path(text: str) -> Path:
    """Return the path that an option names, also as a `file:` URL. Raise `typer.BadParameter` for another one."""
    try:
        return Path(named_path(text, "path"))
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from error


StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE", envvar=STORE_VARIABLE, help="Folder or URL that keeps the run: the coordinator's --store."
    ),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Allow plain HTTP on an address that other machines can reach.")
]
AllowedHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="Name under which clients reach this server, as behind a proxy; repeat for several. Others are refused.",
    ),
]
MetricsHostOption = Annotated[
    str,
    typer.Option(
        "--metrics-host", help="Address of --metrics-port. The default cannot be reached from other machines."
    ),
]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a command logs that runs for long."""

    log_format: Annotated[LogFormat, typer.Option(help="Log as short lines of text or as JSON.")] = LogFormat.TEXT
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False

    def start(self) -> None:
        """Begin to log."""
        start_logging(self.log_format, verbose=self.verbose)


def trusted(tls_ca: Path | None) -> bool | str:
    """Return what to verify a server's certificate with: the file, or True for the system's authorities."""
    return True if tls_ca is None else str(tls_ca)


def trainer_token() -> str | None:
    """Return the training service's token from the environment, or None if the variable is not set.

    Raises:
        InvalidInput: the variable is empty or holds characters that no HTTP header can carry.
    """
    token = os.environ.get(TRAINER_TOKEN_VARIABLE)
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise InvalidInput(f"{TRAINER_TOKEN_VARIABLE} is empty or not a token; allowed: printable ASCII, or unset")
    return token


def check_worker_token(token: str, variable: str, kind: str) -> None:
    """Raise `InvalidInput` unless a token can be one, of the kind that `epochal token KIND` makes."""
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidInput(
            f"--token (or {variable}) is missing or no token; the operator makes one: `epochal token {kind} URL`"
        )
