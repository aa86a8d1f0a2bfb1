"""`epochal key new`, `show` and `forget`: a client's key, and the coordinators that it knows."""

from pathlib import Path
from typing import Annotated

import typer

from epochal.coordinator_client.client_key import create_key, load_key
from epochal.coordinator_client.known_coordinators import forget as forget_known
from epochal.coordinator_client.known_coordinators import known_beside
from epochal.runtime.http.allowed_hosts import address_in
from epochal.runtime.http.http_client import check_url
from epochal.state.errors import InvalidInput

KeyPath = Annotated[Path, typer.Argument(metavar="PATH", help="File of the private key.")]


def new(path: KeyPath) -> None:
    """Make a client's key in a new file, and print its public key.

    Only the file's owner can read it. A file that exists is never overwritten.
    """
    typer.echo(create_key(path).public_key)


def show(path: KeyPath) -> None:
    """Print the public key of a key file, for the run's operator.

    It is 64 hex digits; `\\[access] keys` and `epochal access add` take it.
    """
    typer.echo(load_key(path).public_key)


def forget(
    path: KeyPath,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the coordinator, as `epochal client` takes it.")
    ],
) -> None:
    """Forget the keys of the coordinators at an address, so that the next join there takes the one that it is shown.

    They lie beside the key, in PATH.known_coordinators.
    """
    full = url if "://" in url else f"http://{url}"
    check_url(full, "URL")
    address = address_in(full)
    count = forget_known(known_beside(path), address)
    if not count:
        raise InvalidInput(f"{known_beside(path)} names no coordinator at {address}")
    typer.echo(f"forgot {address}")
