"""The operator's token, as an option or from the environment."""

import os
from typing import Annotated

import typer

from epochal.state.errors import InvalidInput

ADMIN_TOKEN_VARIABLE = "EPOCHAL_ADMIN_TOKEN"

AdminToken = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        help=f"Token that the coordinator printed at its first start. Better: set {ADMIN_TOKEN_VARIABLE}.",
    ),
]


class AdminTokenMissing(InvalidInput):
    """An operator's command has no admin token. The user's fault."""


def given_token(given: str | None) -> str | None:
    """Return the admin token that was given, or that of the environment, or None."""
    return given or os.environ.get(ADMIN_TOKEN_VARIABLE) or None


def required_token(given: str | None) -> str:
    """Return the admin token that was given, or that of the environment. Raise `AdminTokenMissing` without one."""
    token = given_token(given)
    if not token:
        raise AdminTokenMissing(f"give --admin-token or set {ADMIN_TOKEN_VARIABLE}")
    return token
