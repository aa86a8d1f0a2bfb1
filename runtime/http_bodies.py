"""HTTP requests and responses: bounded bodies, strict parsing, and descriptions for OpenAPI."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from state.errors import Refused
from state.refusals import Refusal
from state.wire import canonical_json, parse_document

MAX_BODY_BYTES = 64 * 1024
IMMUTABLE = "public, max-age=31536000, immutable"
BODY_PIECE_TIMEOUT_S = 30.0
"""Maximum time between two pieces of a body."""
MESSAGE_TIMEOUT_S = 60.0
"""Maximum time for a whole message: also refuses senders that send byte by byte."""
_SCHEMAS = "#/components/schemas/"
_BEARER = "bearer "

T = TypeVar("T")


def bearer_token(headers: Headers) -> str | None:
    """Return the token of an `Authorization: Bearer` header, or None."""
    value = headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else None


async def body_pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield the request's body as it arrives.

    Raises:
        Refused: `body-incomplete` if the connection ends, `body-timeout` after `BODY_PIECE_TIMEOUT_S` without a piece.
    """
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(BODY_PIECE_TIMEOUT_S):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise Refused(Refusal.BODY_TIMEOUT, f"no part of the body arrived for {BODY_PIECE_TIMEOUT_S:g} s") from None
        except ClientDisconnect:
            raise Refused(Refusal.BODY_INCOMPLETE, "the connection ended in the middle of the body") from None
        if piece is None:
            return
        yield piece


def has_gone(receive: Receive) -> bool:
    """Return at once whether the sender of a request without a body has closed the connection."""
    for _ in range(2):  # the first message may be the end of the empty body
        waiting = receive().__await__()
        try:
            next(waiting)
        except StopIteration as arrived:
            if arrived.value["type"] == "http.disconnect":
                return True
        else:
            waiting.close()
            return False
    return False


def content_length(request: Request) -> int | None:
    """Return the value of the `Content-Length` header, or None."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the request's body. Raise `Refused` if it is longer than `max_bytes`, or as `body_pieces` does."""
    body = bytearray()
    too_large = Refused(Refusal.BODY_TOO_LARGE, f"the body has more than {max_bytes} bytes")
    if (content_length(request) or 0) > max_bytes:
        raise too_large
    async for piece in body_pieces(request):
        body += piece
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def read_message(request: Request, kind: type[T]) -> T:
    """Return the request's body as a message of type `kind`, of at most `MAX_BODY_BYTES`.

    Raises:
        Refused: `body-timeout` after `MESSAGE_TIMEOUT_S`, and those of `read_body`.
        InvalidDocument: the body is not such a message.
    """
    try:
        async with asyncio.timeout(MESSAGE_TIMEOUT_S):
            body = await read_body(request, MAX_BODY_BYTES)
    except TimeoutError:
        raise Refused(Refusal.BODY_TIMEOUT, f"the body was not complete after {MESSAGE_TIMEOUT_S:g} s") from None
    return parse_document(kind, body)


def document_response(document: Any, cache: str = "no-store", status: int = 200) -> Response:
    """Return a response with a document as canonical JSON."""
    return json_response(canonical_json(document), cache, status)


def json_response(body: bytes, cache: str = "no-store", status: int = 200) -> Response:
    """Return a response with serialised JSON."""
    return Response(body, status, headers={"Cache-Control": cache}, media_type="application/json")


def openapi_body(kind: Any) -> dict[str, Any]:
    """Return the OpenAPI description of a request's message."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _schema_ref(kind)}}}}


def openapi_answer(kind: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of an answer."""
    return {status: {"description": kind.__name__, "content": {"application/json": {"schema": _schema_ref(kind)}}}}


def _schema_ref(kind: Any) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{kind.__name__}"}


def openapi_schemas(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return, by name, the schemas to which `openapi_body` and `openapi_answer` refer, with all nested ones."""
    schemas: dict[str, Any] = {}
    for kind in kinds:
        schema = TypeAdapter(kind).json_schema(ref_template=f"{_SCHEMAS}{{model}}")
        schemas |= schema.pop("$defs", {})
        schemas[kind.__name__] = schema
    return schemas
