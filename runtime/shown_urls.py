"""URLs as messages show them."""

import re


def without_password(url: str) -> str:
    """Return a URL with `…` in the place of its password, if it has one; whatever else is wrong with it stays."""
    return re.sub(r"://([^/?#@:]*):[^/?#]*@", r"://\1:…@", url)
