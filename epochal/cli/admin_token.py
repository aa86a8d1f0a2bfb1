"""The operator's token, as an option or from the environment."""

import os
from typing import Annotated

import typer

ADMIN_TOKEN_VARIABLE = "EPOCHAL_ADMIN_TOKEN"

AdminToken = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        help=f"Token that the coordinator printed at its first start. Better: set {ADMIN_TOKEN_VARIABLE}.",
    ),
]


def given_token(given: str | None) -> str | None:
    """Return the admin token that was given, or that of the environment; None if there is none."""
    return given or os.environ.get(ADMIN_TOKEN_VARIABLE) or None


def required_token(given: str | None) -> str:
    """Return the admin token that was given, or that of the environment."""
    token = given_token(given)
    if not token:
        raise typer.BadParameter(f"give --admin-token or set {ADMIN_TOKEN_VARIABLE}")
    return token
