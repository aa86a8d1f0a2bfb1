"""`file:` URLs (RFC 8089), which name a path of the machine that reads them."""

from urllib.parse import unquote, urlsplit


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
        raise ValueError("a file URL is file:///PATH, of this machine")
    return path
