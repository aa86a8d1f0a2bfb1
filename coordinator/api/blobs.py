"""Routes of blobs: results and checkpoints, named by the SHA-256 of their bytes."""

from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coordinator.api.requests import caller, sha256_of
from coordinator.handlers import Handlers
from runtime.http_bodies import IMMUTABLE, body_pieces, content_length
from state.errors import Refused
from state.refusals import Refusal

MAX_RANGE_DIGITS = 18
"""Maximum length of a number in a `Range`: longer ones are beyond every blob's end."""


def blob_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which blobs are delivered and read."""
    router = APIRouter()

    @router.put("/v1/blobs/{sha256}", summary="Deliver an announced result or checkpoint", status_code=201)
    async def put_blob(sha256: str, request: Request) -> Response:
        client_id = caller(handlers, request)
        digest = sha256_of(sha256)
        await handlers.receive_blob(client_id, digest, body_pieces(request), content_length(request))
        return Response(status_code=201)

    @router.get("/v1/blobs/{sha256}", summary="A result or checkpoint; ranges are supported")
    async def get_blob(sha256: str, request: Request) -> Response:
        caller(handlers, request)
        digest = sha256_of(sha256)
        size = await handlers.service.blobs.size(digest)
        if size is None:
            raise Refused(Refusal.NOT_FOUND, f"there is no blob {digest}")
        start, stop, partial = _range(request.headers.get("range"), size)
        headers = {
            "Content-Length": str(stop - start),
            "Accept-Ranges": "bytes",
            "ETag": f'"{digest}"',
            "Cache-Control": IMMUTABLE,
        }
        if partial:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        body: AsyncIterator[bytes] = handlers.service.blobs.stream(digest, start, stop)
        return StreamingResponse(body, 206 if partial else 200, headers, media_type="application/octet-stream")

    return router


def _range(header: str | None, size: int) -> tuple[int, int, bool]:
    """Return (start, stop, whether it is a part) of a Range header; a header with several ranges is ignored."""
    unit, _, spec = (header or "").partition("=")
    first, dash, last = spec.strip().partition("-")
    digits = first + last
    if unit.strip() != "bytes" or not dash or not (digits.isascii() and digits.isdigit()):
        return 0, size, False
    if max(len(first), len(last)) > MAX_RANGE_DIGITS:
        raise Refused(Refusal.RANGE_NOT_SATISFIABLE, f"the blob has {size} bytes", size_bytes=size)
    if first:
        start, stop = int(first), min(size, int(last) + 1 if last else size)
    else:
        start, stop = max(0, size - int(last)), size
    if start >= stop:
        raise Refused(Refusal.RANGE_NOT_SATISFIABLE, f"the blob has {size} bytes", size_bytes=size)
    return start, stop, True
