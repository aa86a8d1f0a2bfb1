"""The names under which a server answers: a page in a browser must not reach it under a name of its own.

A page may have its own name resolve to this machine's address (DNS rebinding); its requests then reach the server, but
name the page's host. So a request must name a host, and one that is expected here. Only `Host` counts: nothing that a
proxy or sender adds, such as `X-Forwarded-Host`, is read.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.runtime.connections.loopback import is_loopback
from epochal.runtime.http.problem_json import problem_response
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import Refusal

ANY_HOST: frozenset[str] | None = None
"""Every name is allowed."""
MAX_SHOWN_CHARS = 80
"""Maximum length of a sender's own text in an error about it."""
MAX_REMEMBERED = 64
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|(?P<name>[0-9A-Za-z._-]+))(?::[0-9]{0,5})?")


def allowed_hosts(listens_on: str, named: Iterable[str]) -> frozenset[str] | None:
    """Return the names under which a server answers; loopback names and addresses are always allowed in addition.

    Args:
        listens_on: the address that it listens on: if it is loopback and none is named, no other name is allowed.
        named: names and addresses, without a port; if there are any, only they are allowed.

    Raises:
        InvalidInput: one of them is not a host's name or address.
    """
    names = {canonical_host(name) for name in named}
    return frozenset(names | {canonical_host(listens_on)}) if names or is_loopback(listens_on) else ANY_HOST


def canonical_host(name: str) -> str:
    """Return a name or address as `Host` headers are compared. Raise `InvalidInput` if it is neither."""
    text = name.strip("[]")
    try:
        address = ip_address(text)
        return str(getattr(address, "ipv4_mapped", None) or address)
    except ValueError:
        if not re.fullmatch(r"[0-9A-Za-z._-]+", text):
            mistake = f"--allowed-host {name!r} is not a host; give a name or address without scheme and port"
            raise InvalidInput(mistake) from None
        return text.lower().rstrip(".")


def host_in(header: str) -> str | None:
    """Return the name or address in a `Host` header, without its port; None if it holds neither."""
    found = _HOST.fullmatch(header)
    try:
        return None if found is None else canonical_host(found["address"] or found["name"])
    except InvalidInput:  # brackets around something else than an address
        return None


def address_in(url: str) -> str:
    """Return host and port of a URL, as they are dialled."""
    parts = httpx.URL(url)
    host = parts.raw_host.decode("ascii")
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


class CheckedHosts:
    """ASGI middleware that refuses requests which name no host, or one that is not allowed."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str] | None) -> None:
        self._app = app
        self._allowed = allowed
        self._found_allowed: set[bytes] = set()
        """Values of the header that were allowed, so that they need no parsing; at most `MAX_REMEMBERED`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refusal(scope)
            if refused is not None:
                await problem_response(refused)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refused | None:
        values = [value for name, value in scope["headers"] if name == b"host"]
        if len(values) == 1 and values[0] in self._found_allowed:
            return None
        headers = [value.decode("latin-1") for value in values]
        if not headers and scope["http_version"] in ("1.0", "0.9"):
            return None  # such a client may name none (RFC 9112, 3.2), and is no browser
        host = host_in(headers[0]) if len(headers) == 1 else None
        if host is None:
            return Refused(Refusal.HOST_MISSING, "a request has exactly one Host header, with a name or address")
        if self._allowed is None or host in self._allowed or is_loopback(host):
            if len(self._found_allowed) < MAX_REMEMBERED and len(values[0]) <= MAX_SHOWN_CHARS:
                self._found_allowed.add(values[0])
            return None
        shown = headers[0][:MAX_SHOWN_CHARS]
        return Refused(
            Refusal.HOST_NOT_ALLOWED, f"this server does not answer as {shown}; start it with --allowed-host {host}"
        )
