"""URLs as messages show them: without passwords, also where the URL is wrong."""

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+")
_NAMED = re.compile(r"((?:^|[?&\s])(?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^&\s]*)", re.IGNORECASE)
"""A password as a parameter, of a URL or in libpq's own words (`host=… password=…`)."""


def without_password(url: str) -> str:
    """Return a URL with `…` in the place of its passwords; whatever else is wrong with it stays.

    A password may hold what should be percent-encoded there (`/`, `?`, `#`, `@`): it is taken to reach to the last `@`.
    """
    found = _SCHEME.match(url)
    scheme = "" if found is None else found[0]
    before, at, after = url.removeprefix(scheme).rpartition("@")
    user, colon, _ = before.partition(":")
    rest = f"{user}:…@{after}" if colon else f"{before}{at}{after}"
    return _NAMED.sub(r"\1…", scheme + rest)
