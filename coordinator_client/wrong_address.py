"""Whether a coordinator's URL is wrong, by the answer from there, so that a command ends at once with advice.

The rule kept here: a server that does not answer at all may be starting, so it is no mistake. A name that does not
resolve is one, and so is a server that answers in another way than a coordinator.
"""

import asyncio
import contextlib
import socket
import ssl

import httpx

from epochal.runtime.http.http_client import causes_of, proxy_of, user_mistake
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, InvalidInput, Refused

PROBE_TIMEOUT_S = 5.0
"""Maximum time of a connection that finds out which protocol a server speaks."""
HTTP_BEGIN = b"HTTP"


class WrongAddress(InvalidInput):
    """The URL of a coordinator, or whom to trust there, is wrong: no attempt can succeed. The user's mistake."""


async def mistake_in(url: str, error: CoordinatorUnreachable | Refused | InvalidDocument) -> str | None:
    """Return what is wrong with a coordinator's URL, and what to do; None if the same request may succeed later.

    Args:
        url: the coordinator's base URL.
        error: raised for a first request.
    """
    if mistake := user_mistake(error, url):
        return mistake
    if isinstance(error, Refused) and error.kind.may_retry:
        return None
    address = httpx.URL(url)
    causes = list(causes_of(error))
    if any(isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME for cause in causes):
        if proxy := proxy_of(url):
            return f"the proxy {proxy} that the environment names for {url} has no host of this name; check it"
        return f"there is no host {address.host!r}; check the name in {url}"
    broke_off = any(isinstance(cause, httpx.RemoteProtocolError | httpx.ReadError) for cause in causes)
    if isinstance(error, CoordinatorUnreachable) and not broke_off:
        return None
    if address.scheme == "http" and await _speaks_tls(address):
        return f"{url} serves HTTPS; use https{url.removeprefix('http')}"
    if isinstance(error, CoordinatorUnreachable):
        return f"{url} does not speak HTTP; give the address of the coordinator" if await _is_other(address) else None
    if address.path.strip("/"):
        root = address.copy_with(raw_path=b"/")
        return f"no coordinator answers at {url}; give its address alone, such as {root}"
    return f"{url} does not answer as a coordinator does ({error.message}); give the address of the coordinator"


async def _speaks_tls(address: httpx.URL) -> bool:
    trust_all = ssl.create_default_context()
    trust_all.check_hostname = False
    trust_all.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(address.host, _port_of(address), ssl=trust_all)
    except OSError:  # a TimeoutError and an ssl.SSLError are OSErrors too
        return False
    writer.close()
    return True


async def _is_other(address: httpx.URL) -> bool:
    """Return whether the server answers HTTP with something else."""
    if address.scheme != "http":
        return False
    begin = b""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.host, _port_of(address))
            with contextlib.closing(writer):
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                begin = await reader.read(len(HTTP_BEGIN))
    except OSError:
        return False
    return bool(begin) and begin != HTTP_BEGIN


def _port_of(address: httpx.URL) -> int:
    return address.port or 80
