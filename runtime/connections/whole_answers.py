"""Short answers, sent in one piece: head and body in one write, with nothing between the route and the connection.

Uvicorn takes an answer as messages, checks each header, and writes head and body apart: for a short one that takes
longer than to make it.
"""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

AT_ONCE_IN_SCOPE = "epochal.at_once"
"""Key of a request's `AtOnce` in the ASGI scope. Whoever changes what is sent takes it away."""
AtOnce: TypeAlias = Callable[[int, list[tuple[bytes, bytes]], bytes], bool]
"""Sends an answer of this status, these headers, and this body, and returns whether it could."""
WITHOUT_BODY = (204, 304)


def offer(cycle: RequestResponseCycle) -> None:
    """Let whoever answers a request that has just arrived send the answer in one piece."""
    cycle.scope[AT_ONCE_IN_SCOPE] = partial(_send, weakref.ref(cycle))  # type: ignore[literal-required]


async def send_whole(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, in one piece if it is at hand and the connection takes it."""
    at_once: AtOnce | None = scope.get(AT_ONCE_IN_SCOPE)
    is_at_hand = type(response).__call__ is Response.__call__ and response.background is None
    if (
        at_once is None
        or not is_at_hand
        or not at_once(response.status_code, response.raw_headers, bytes(response.body))
    ):
        await response(scope, receive, send)


def _send(
    found: "weakref.ref[RequestResponseCycle]", status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> bool:
    cycle = found()
    if cycle is None or cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
        return False
    if cycle.scope["method"] == "HEAD" or (status in WITHOUT_BODY and body):
        return False
    if status not in WITHOUT_BODY and (b"content-length", b"%d" % len(body)) not in headers:
        return False
    head = _head(status, (*cycle.default_headers, *headers), ends=not cycle.keep_alive)
    if head is None:
        return False
    cycle.response_started, cycle.response_complete, cycle.waiting_for_100_continue = True, True, False
    cycle.transport.write(head + body)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def _head(status: int, headers: Iterable[tuple[bytes, bytes]], *, ends: bool) -> bytes | None:
    """Return the head of an answer; None if a header says what uvicorn has to look at, or breaks the head apart."""
    lines = [STATUS_LINE[status]]
    for name, value in headers:
        if name == b"connection" or name == b"transfer-encoding":
            return None
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"connection: close\r\n\r\n" if ends else b"\r\n")
    head, count = b"".join(lines), len(lines) + ends
    return head if head.count(b"\n") == count == head.count(b"\r") and b"\0" not in head else None
