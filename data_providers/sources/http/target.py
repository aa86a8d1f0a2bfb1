"""The target of a request: a URL parsed once, as it is sent and as messages show it."""

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote

import httpx
from yarl import URL

from epochal.state.config.data_location import MAX_PORT

_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that can be requested.

    Attributes:
        url: all of it.
        sent: the URL without user and password.
        authorization: of the URL's user and password; "" without.
        shown: the URL without what may be secret, for messages.
        server: scheme, and host with its port unless that is the scheme's own.
    """

    url: httpx.URL = field(repr=False)
    sent: URL = field(repr=False)
    authorization: str = field(repr=False)
    shown: str
    server: tuple[str, str]

    @classmethod
    def of(cls, url: httpx.URL) -> "Target":
        """Return the target of a URL. Raise `httpx.InvalidURL` if it cannot be requested."""
        if url.scheme not in _SCHEMES:
            raise httpx.InvalidURL(f"the scheme {url.scheme!r} is not http or https")
        if not url.host or not 0 < (1 if url.port is None else url.port) <= MAX_PORT:
            raise httpx.InvalidURL(f"there is no port {url.port}" if url.host else "it names no server")
        sent = URL(str(url.copy_with(userinfo=b"", fragment=None)), encoded=True)
        shown = str(url.copy_with(userinfo=b"", query=None, fragment=None))
        return cls(url, sent, _basic(url), shown, (url.scheme, url.netloc.decode("ascii").lower()))


def _basic(url: httpx.URL) -> str:
    if not url.userinfo:
        return ""
    return "Basic " + base64.b64encode(f"{unquote(url.username)}:{unquote(url.password)}".encode()).decode("ascii")
