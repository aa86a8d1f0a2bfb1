"""Connections of httpx to those addresses alone that the documents of a run may lead to.

The rule kept here: each connection is checked, and so each redirect is.
"""

import asyncio
import ssl
from collections.abc import Iterable

import httpcore
import httpx

from epochal.runtime.connections.allowed_addresses import Reach
from epochal.runtime.connections.connecting import Address, allowed_addresses, check_behind_proxy, first_connected


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves hosts, and connects those of their addresses that are allowed."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return a connection to the first address that answers."""

        async def connect(address: Address) -> tuple[str, httpcore.AsyncNetworkStream]:
            place = str(address[-1][0])
            try:
                return place, await self._inner.connect_tcp(place, port, None, local_address, socket_options)
            except httpcore.ConnectError as error:
                raise OSError(str(error)) from error

        async def close(connected: tuple[str, httpcore.AsyncNetworkStream]) -> None:
            await connected[1].aclose()

        try:
            async with asyncio.timeout(timeout):
                found = await allowed_addresses(host, port, self._reach)
                place, stream = await first_connected(found, connect, close)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection within {timeout} s") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        self._reach.connected(host, port, place)
        return stream

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._inner.sleep(seconds)


def checked_transport(reach: Reach | None, context: ssl.SSLContext, limits: httpx.Limits) -> httpx.AsyncHTTPTransport:
    """Return a transport without a proxy whose connections go where `reach` allows.

    A request raises `NotAllowed` where its host may not be connected; None allows all.
    """
    transport = httpx.AsyncHTTPTransport(verify=context, limits=limits)
    if reach is not None:
        check_connections(transport, reach)
    return transport


def check_connections(transport: httpx.AsyncBaseTransport, reach: Reach) -> None:
    """Let a transport of httpx connect only where `reach` allows: httpx has no option for httpcore's."""
    assert isinstance(transport, httpx.AsyncHTTPTransport)
    transport._pool._network_backend = _CheckedBackend(reach)


async def check_request(request: httpx.Request, reach: Reach) -> None:
    """Raise `NotAllowed` if a proxy would be asked for a host that may not be connected: a hook of httpx."""
    host, port = request.url.raw_host.decode("ascii"), request.url.port
    if (host, port or (443 if request.url.scheme == "https" else 80)) != reach.home:
        await check_behind_proxy(host, port or 0, reach)
