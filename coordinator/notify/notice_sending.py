"""Sending a notice: as one signed POST of JSON, or by apprise, which knows Slack, Discord, ntfy, mail and many others.

The signature is HMAC-SHA256 over the time, a dot and the body, as hex. Apprise is an extra (`epochal[notify]`).
"""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

import httpx

from epochal.coordinator.notify.addresses import Address
from epochal.runtime.http.aiohttp_transport import AiohttpTransport
from epochal.runtime.retry import retry_after_s
from epochal.state.messages.notices import Notice
from epochal.state.text.visible import visible

SIGNATURE_HEADER = "X-Epochal-Signature"
TIME_HEADER = "X-Epochal-Time"
MAX_CONNECTIONS = 4
ATTEMPT_S = 10.0
"""Maximum time of one attempt at an address."""
_TEMPORARY = frozenset({408, 425, 429})
_AS_TEXT = str.maketrans("<>@", "‹›＠")
"""Signs with which a client's text could mention people in Slack or Discord."""

Result: TypeAlias = Literal["delivered", "refused", "retried"]


@dataclass(frozen=True, slots=True)
class Told:
    """The end of an attempt: whether the address has the notice, why not, and how long it asks to wait."""

    result: Result
    reason: str
    retry_after_s: float = 0.0


def open_notice_client() -> httpx.AsyncClient:
    """Return a client for POSTs: bounded in time, and it follows no redirects. The caller closes it."""
    return httpx.AsyncClient(transport=AiohttpTransport(True, None, MAX_CONNECTIONS), timeout=ATTEMPT_S)


async def tell(client: httpx.AsyncClient, address: Address, run_id: str, notice: Notice) -> Told:
    """Send a notice to an address once. The reason holds nothing that its URL, a secret perhaps, could be in."""
    title = f"Epochal run {run_id}: {notice.kind}"
    try:
        async with asyncio.timeout(ATTEMPT_S):
            if address.takes_json:
                return await _post(client, address, run_id, title, notice)
            return await _by_apprise(address, title, notice.message)
    except TimeoutError:
        return Told("retried", f"no answer within {ATTEMPT_S:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Told("retried", type(error).__name__)


def signature_of(secret: str, time: str, body: bytes) -> str:
    """Return the HMAC-SHA256, in hex, of `time`, a dot and the body, with the secret's UTF-8 bytes as its key."""
    return hmac.new(secret.encode(), time.encode() + b"." + body, hashlib.sha256).hexdigest()


async def _post(client: httpx.AsyncClient, address: Address, run_id: str, title: str, notice: Notice) -> Told:
    """Post a notice. The same notice gives the same bytes."""
    sent = {
        "id": f"{run_id}-{notice.kind}-{round(notice.raised_s * 1000)}",
        "run_id": run_id,
        "kind": notice.kind,
        "title": title,
        "message": notice.message,
        "raised_s": notice.raised_s,
    }
    body = json.dumps(sent, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", TIME_HEADER: str(int(notice.raised_s))}
    if address.secret is not None:
        headers[SIGNATURE_HEADER] = f"sha256={signature_of(address.secret, headers[TIME_HEADER], body)}"
    async with client.stream("POST", address.url, content=body, headers=headers) as response:
        reason = f"HTTP {response.status_code}"
        if response.is_success:
            return Told("delivered", reason)
        if response.is_server_error or response.status_code in _TEMPORARY:
            return Told("retried", reason, retry_after_s(response.headers.get("retry-after"), time.time()))
        return Told("refused", reason)


async def _by_apprise(address: Address, title: str, message: str) -> Told:
    import apprise

    logging.getLogger("apprise").propagate = False  # its lines may show an address
    service = apprise.Apprise()
    service.add(address.url)
    text = visible(message).translate(_AS_TEXT)
    is_sent = await service.async_notify(body=text, title=title, body_format=apprise.NotifyFormat.TEXT)
    return Told("delivered", "sent") if is_sent else Told("retried", "apprise could not send it")
