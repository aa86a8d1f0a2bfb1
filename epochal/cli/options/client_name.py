"""The name that a client shows to people (`--name`)."""

import unicodedata
from typing import Annotated

import typer

from epochal.state.client_names import MAX_CLIENT_NAME_CHARS, checked_client_name
from epochal.state.errors import InvalidInput

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help=f"Name that people see beside this client's id, at most {MAX_CLIENT_NAME_CHARS} characters; it proves "
        "nothing. A client that returns may have another one.",
    ),
]


def checked_name_option(name: str | None) -> str | None:
    """Return the name in Unicode's normal form C, in which some keyboards and systems do not write it.

    Raises:
        InvalidInput: a client may not have this name.
    """
    if name is None:
        return None
    try:
        return checked_client_name(unicodedata.normalize("NFC", name))
    except ValueError as error:
        raise InvalidInput(f"--name {error}") from error
