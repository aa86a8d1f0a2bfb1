"""The proxies that the environment names: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`."""

from urllib.request import getproxies, proxy_bypass

from yarl import URL

from epochal.state.errors import InvalidInput

SCHEMES = ("http", "https")


class Proxies:
    """The environment's proxies when this was made.

    Raises:
        InvalidInput: one of them is not `http://` or `https://`; the user's fault.
    """

    def __init__(self) -> None:
        found = getproxies()
        named = {scheme: found.get(scheme) or found.get("all") for scheme in SCHEMES}
        self._by_scheme = {scheme: _parsed(text, scheme) for scheme, text in named.items() if text}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._by_scheme)

    def of(self, url: URL) -> URL | None:
        """Return the proxy for a server's URL, with its user and password; None where it is connected directly."""
        proxy = self._by_scheme.get(url.scheme)
        return None if proxy is None or proxy_bypass(f"{url.raw_host}:{url.port}") else proxy


def _parsed(text: str, scheme: str) -> URL:
    try:
        url = URL(text if "://" in text else f"http://{text}")
        if url.scheme in SCHEMES and url.raw_host and url.port:
            return url
    except ValueError:
        pass
    raise InvalidInput(
        f"the proxy that the environment names for {scheme}:// cannot be used; allowed: http://host:port or https://…"
    )
