"""`file:` URLs (RFC 8089), which name a path of the machine that reads them."""

from urllib.parse import unquote, urlsplit

from epochal.state.errors import InvalidInput


def path_of(text: str) -> str:
    """Return the path that a `file:` URL names; another text as it is.

    Raises:
        ValueError: the URL names another machine, no absolute path, a query or a fragment.
    """
    if not text.lower().startswith("file:"):
        return text
    parts = urlsplit(text)
    path = unquote(parts.path)
    is_path = path.startswith("/") and "\0" not in path and not parts.query and not parts.fragment
    if parts.netloc not in ("", "localhost") or not is_path:
        raise ValueError("a file URL is file:///PATH, an absolute path of this machine, and no host")
    return path


def named_path(text: str, place: str) -> str:
    """Return `path_of` for what a user wrote in a place, which the message of an `InvalidInput` names."""
    try:
        return path_of(text)
    except ValueError as error:
        raise InvalidInput(f"{place} {text!r}: {error}", place=text) from error
