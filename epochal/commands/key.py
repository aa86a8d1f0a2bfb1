"""`epochal key new` and `show`: a client's key."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator_client.client_key import create_key, load_key

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
