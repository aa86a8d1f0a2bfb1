"""The target of a request: a URL parsed once, and the server or the proxy that is connected for it."""

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import httpx

from epochal.state.config.data_location import MAX_PORT
from epochal.state.errors import InvalidInput

DEFAULT_PORTS = {"http": 80, "https": 443}
_PROXY_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """A server: scheme, host in ASCII, and port."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        """Host and port, as in a `Host` field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that can be requested.

    Attributes:
        url: all of it.
        origin: its server.
        path: path and query, as they are sent.
        authorization: of the URL's user and password; "" without.
        shown: the URL without what may be secret, for messages.
    """

    url: httpx.URL = field(repr=False)
    origin: HttpOrigin
    path: str = field(repr=False)
    authorization: str = field(repr=False)
    shown: str

    @classmethod
    def of(cls, url: httpx.URL) -> "Target":
        """Return the target of a URL. Raise `httpx.InvalidURL` if it cannot be requested."""
        shown = str(url.copy_with(userinfo=b"", query=None, fragment=None))
        if url.scheme not in DEFAULT_PORTS:
            raise httpx.InvalidURL(f"the scheme {url.scheme!r} is not http or https")
        port = DEFAULT_PORTS[url.scheme] if url.port is None else url.port
        if not url.host or not 0 < port <= MAX_PORT:
            raise httpx.InvalidURL(f"there is no port {port}" if url.host else "it names no server")
        origin = HttpOrigin(url.scheme, url.raw_host.decode("ascii").strip("[]"), port)
        authorization = _basic(url.username, url.password) if url.userinfo else ""
        return cls(url, origin, url.raw_path.decode("ascii"), authorization, shown)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy between this machine and servers. `authorization` is of its URL's user and password."""

    origin: HttpOrigin
    authorization: str = field(repr=False)


class Proxies:
    """The environment's proxies (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`) when this was made.

    Raises:
        InvalidInput: one of them is not `http://` or `https://`; the user's fault.
    """

    def __init__(self) -> None:
        self._by_scheme: dict[str, Proxy] = {}
        found = getproxies()
        for scheme in DEFAULT_PORTS:
            text = found.get(scheme) or found.get("all")
            if text:
                self._by_scheme[scheme] = _parse_proxy(text, scheme)

    def of(self, origin: HttpOrigin) -> Proxy | None:
        """Return the proxy for a server; None where it is connected directly."""
        proxy = self._by_scheme.get(origin.scheme)
        if proxy is None or proxy_bypass(f"{origin.host}:{origin.port}"):
            return None
        return proxy


def _parse_proxy(text: str, scheme: str) -> Proxy:
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
        if url.scheme in _PROXY_SCHEMES:
            target = Target.of(url)
            return Proxy(target.origin, target.authorization)
    except (httpx.InvalidURL, UnicodeError):
        pass
    raise InvalidInput(
        f"the proxy that the environment names for {scheme}:// cannot be used; allowed: http://host:port or https://…"
    )


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
