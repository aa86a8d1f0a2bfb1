"""HTTP requests and responses: bounded bodies and strict parsing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import canonical_json, parse_document

MAX_BODY_BYTES = 64 * 1024
IMMUTABLE = "public, max-age=31536000, immutable"
BODY_PIECE_TIMEOUT_S = 30.0
"""Maximum time between two pieces of a body."""
MESSAGE_TIMEOUT_S = 60.0
"""Maximum time for a whole message: also refuses senders that send byte by byte."""
MIN_BODY_BYTES_PER_S = 64 * 1024
"""Minimum average rate of a large body."""
BODY_GRACE_S = 10.0
"""Time that such a body has beyond what its bytes need at its minimum rate."""
_BEARER = "bearer "

T = TypeVar("T")


def bearer_token(headers: Headers) -> str | None:
    """Return the token of an `Authorization: Bearer` header, or None."""
    value = headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else None


async def body_pieces(request: Request, first: Message | None = None) -> AsyncIterator[bytes]:
    """Yield the request's body as it arrives; `first` is its first message if that was received already.

    Raises:
        Refused: `body-incomplete` if the connection ends, `body-timeout` after `BODY_PIECE_TIMEOUT_S` without a piece.
    """
    more = True
    while more:
        message, first = first or await _next_message(request), None
        if message["type"] == "http.disconnect":
            raise Refused(Refusal.BODY_INCOMPLETE, "the connection ended in the middle of the body")
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


async def _next_message(request: Request) -> Message:
    try:
        async with asyncio.timeout(BODY_PIECE_TIMEOUT_S):
            return await request.receive()  # `request.stream` yields once more after the last piece
    except TimeoutError:
        raise Refused(Refusal.BODY_TIMEOUT, f"no part of the body arrived for {BODY_PIECE_TIMEOUT_S:g} s") from None


async def steady_body_pieces(
    request: Request, min_bytes_per_s: Callable[[], float] = lambda: MIN_BODY_BYTES_PER_S
) -> AsyncIterator[bytes]:
    """Yield the request's body as it arrives, at a minimum rate.

    A body that was faster than its minimum may pause, but never for more than `BODY_PIECE_TIMEOUT_S` in all, until it
    has made up for it.

    Args:
        request: the request.
        min_bytes_per_s: returns the minimum rate, which may change while the body arrives.

    Raises:
        Refused: `body-timeout` if the body is slower, and those of `body_pieces`.
    """
    now_s = asyncio.get_running_loop().time
    pieces = body_pieces(request)
    allowed_s, moved_bytes = BODY_GRACE_S, 0
    while True:
        asked_s = now_s()
        try:
            async with asyncio.timeout(max(0.0, allowed_s)):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise Refused(
                Refusal.BODY_TIMEOUT,
                f"the body is too slow after {moved_bytes} bytes; needed after {BODY_GRACE_S:g} s: at least "
                f"{min_bytes_per_s():.0f} bytes/s",
            ) from None
        if piece is None:
            return
        moved_bytes += len(piece)
        allowed_s = min(BODY_PIECE_TIMEOUT_S, allowed_s - (now_s() - asked_s) + len(piece) / min_bytes_per_s())
        yield piece


def has_gone(receive: Receive) -> bool:
    """Return at once whether the sender of a request without a body has closed the connection."""
    for _ in range(2):  # the first message may be the end of the empty body
        message = _at_hand(receive)
        if message is None:
            return False
        if message["type"] == "http.disconnect":
            return True
    return False


def _at_hand(receive: Receive) -> Message | None:
    """Return the next message of a request if it has arrived, without waiting for it."""
    waiting = receive().__await__()
    try:
        next(waiting)
    except StopIteration as arrived:
        message: Message = arrived.value
        return message
    waiting.close()
    return None


def content_length(request: Request) -> int | None:
    """Return the value of the `Content-Length` header, or None."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


async def read_body(request: Request, max_bytes: int, pieces: AsyncIterator[bytes] | None = None) -> bytes:
    """Return the request's body.

    Args:
        request: the request.
        max_bytes: maximum size.
        pieces: yields the body; `body_pieces` unless given.

    Raises:
        Refused: `body-too-large`, or what `pieces` raises.
    """
    body = bytearray()
    too_large = Refused(Refusal.BODY_TOO_LARGE, f"the body has more than {max_bytes} bytes")
    if (content_length(request) or 0) > max_bytes:
        raise too_large
    async for piece in body_pieces(request) if pieces is None else pieces:
        body += piece
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def read_message(request: Request, kind: type[T]) -> T:
    """Return the request's body as a message of type `kind`, of at most `MAX_BODY_BYTES`.

    Raises:
        Refused: those of `read_short_body`.
        InvalidDocument: the body is not such a message.
    """
    return parse_document(kind, await read_short_body(request, MAX_BODY_BYTES))


async def read_short_body(request: Request, max_bytes: int) -> bytes:
    """Return the request's body; mostly all of it has arrived.

    Raises:
        Refused: `body-timeout` after `MESSAGE_TIMEOUT_S`, and those of `read_body`.
    """
    first = _at_hand(request.receive)
    if first is not None and first["type"] == "http.request" and not first.get("more_body", False):
        body: bytes = first.get("body", b"")
        if len(body) <= max_bytes:
            return body
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT_S):
            return await read_body(request, max_bytes, body_pieces(request, first))
    except TimeoutError:
        raise Refused(Refusal.BODY_TIMEOUT, f"the body was not complete after {MESSAGE_TIMEOUT_S:g} s") from None


def document_response(document: Any, cache: str = "no-store", status: int = 200) -> Response:
    """Return a response with a document as canonical JSON."""
    return json_response(canonical_json(document), cache, status)


def json_response(body: bytes, cache: str = "no-store", status: int = 200) -> Response:
    """Return a response with serialised JSON."""
    return Response(body, status, headers={"Cache-Control": cache}, media_type="application/json")
