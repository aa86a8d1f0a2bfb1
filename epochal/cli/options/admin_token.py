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


def required_token(given: str | None, instead: str = "") -> str:
    """Return the admin token that was given, or that of the environment.

    Args:
        given: the option's value.
        instead: in words, how the command works without a token.

    Raises:
        AdminTokenMissing: there is none.
    """
    token = given_token(given)
    if not token:
        raise AdminTokenMissing(
            "this is for the run's operator, who has the admin token that the coordinator printed at its first start "
            f"(`epochal coordinator … --new-admin-token` makes another): set {ADMIN_TOKEN_VARIABLE}, or give "
            f"--admin-token{instead}"
        )
    return token
