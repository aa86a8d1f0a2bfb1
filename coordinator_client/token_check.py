"""The check of a token before a request shows it."""

from epochal.state.errors import InvalidInput


def check_admin_token(token: str) -> None:
    """Raise `InvalidInput` unless a header can carry the token."""
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput("not an admin token: a coordinator's consists of letters, digits, - and _")
