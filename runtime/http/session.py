"""Sessions of the HTTP client, `aiohttp`: which certificates are trusted, and which addresses are connected.

The rules kept here: an address is checked after its name was resolved, and connected as it was checked; this is so for
every connection, and so for every redirect. Every connection keeps to the client's limits of bandwidth. A proxy is
connected wherever it is, and asked only for servers that may be connected, as far as their names are known here. No
cookie is kept, no `netrc` is read, and connecting has a bound.
"""

import asyncio
import os
import socket
import ssl
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, TypeAlias

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import allowed_addresses, check_behind_proxy
from epochal.runtime.connections.limited_transport import limited
from epochal.state.errors import InvalidInput

Trust: TypeAlias = bool | str | ssl.SSLContext
"""Whether to verify TLS certificates, or a file of certificate authorities to trust, or a TLS context."""

CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 60.0
"""Time for which an unused connection is kept."""
_reach_of_names: ContextVar[Reach | None] = ContextVar("reach_of_names", default=None)
"""The addresses to which the connection that is being opened may lead."""


def open_session(
    reach: Reach | None = None, trust: Trust = True, *, connections: int = 100, silence_s: float | None = None
) -> aiohttp.ClientSession:
    """Return a session, which does not decompress bodies and has no time limit of its own. The caller closes it.

    A request raises `NotAllowed` where its server may not be connected. Proxies are named with each request, as
    `Proxies.of` returns them.

    Args:
        reach: the addresses that may be connected; None for all.
        trust: in whose certificates.
        connections: maximum number of them at a time; further requests wait.
        silence_s: maximum time without a byte of an answer; None for no limit.

    Raises:
        InvalidInput: the file of `trust` holds no certificates.
    """
    return aiohttp.ClientSession(
        connector=_Connector(reach, tls_context(trust), connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s),
        auto_decompress=False,
    )


def tls_context(trust: Trust) -> ssl.SSLContext:
    """Return the TLS context of a client. Raise `InvalidInput` if a file holds no certificates."""
    if isinstance(trust, ssl.SSLContext):
        return trust
    return _loaded(trust, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)  # certificates take long to read
def _loaded(trust: bool | str, file: str | None, folder: str | None) -> ssl.SSLContext:  # noqa: ARG001 - both are read
    try:
        return ssl.create_default_context(cafile=trust) if isinstance(trust, str) else httpx.create_ssl_context(trust)
    except OSError as error:  # ssl.SSLError is one
        if isinstance(trust, str):
            raise InvalidInput(f"--tls-ca {trust}: {error.strerror or error}", path=trust) from error
        reason = f"SSL_CERT_FILE={file}: {error.strerror or error}; allowed: a file of certificates (PEM)"
        raise InvalidInput(reason, path=file) from error


class _Resolver(AbstractResolver):
    """Resolves the names of hosts to those of their addresses that may be connected."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[ResolveResult]:  # noqa: ARG002
        found = await allowed_addresses(host, port, _reach_of_names.get())
        return [
            ResolveResult(
                hostname=host, host=str(place[0]), port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST
            )
            for kind, _, _, _, place in found
        ]

    async def close(self) -> None:
        """Do nothing."""


class _Connector(aiohttp.TCPConnector):
    """Connects those addresses that may be connected; `_create_connection` is aiohttp's own place for such rules."""

    def __init__(self, reach: Reach | None, context: ssl.SSLContext, connections: int) -> None:
        super().__init__(
            ssl=context, limit=connections, resolver=_Resolver(), use_dns_cache=False, keepalive_timeout=KEEP_ALIVE_S
        )
        self._reach = reach

    async def _create_connection(self, req: aiohttp.ClientRequest, traces: Any, timeout: Any) -> Any:
        host, port, reach = req.url.raw_host or "", req.url.port or 0, self._reach
        token = _reach_of_names.set(reach if req.proxy is None else None)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if req.proxy is None:
                    if reach is not None and _is_address(host):  # it is not resolved
                        reach.check(host, host, port)
                elif reach is not None and (host, port) != reach.home:
                    await check_behind_proxy(host, port, reach)
                connection = await super()._create_connection(req, traces, timeout)
        finally:
            _reach_of_names.reset(token)
        if reach is not None and req.proxy is None and connection.transport is not None:
            peer = connection.transport.get_extra_info("peername")
            if peer is not None:  # None: it was reset at once
                reach.connected(host, port, peer[0])
        if connection.transport is not None:
            connection.transport = limited(connection.transport, connection)
        return connection


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
