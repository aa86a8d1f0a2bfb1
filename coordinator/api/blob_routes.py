"""Routes of blobs: results and checkpoints, named by the SHA-256 of their bytes."""

import logging
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from epochal.coordinator.api.request_parts import ADMIN, MEMBER, blob_reader, caller, sha256_of
from epochal.coordinator.blobs.resumable_uploads import BlobBody
from epochal.coordinator.blobs.transfers import Transfer
from epochal.coordinator.handlers import Handlers
from epochal.runtime.connections.shedding import end_connection
from epochal.runtime.http.bodies import IMMUTABLE, body_pieces, content_length, document_response, has_gone
from epochal.runtime.http.openapi import BYTES, WHOLE, BytesResponse, DescribedRoute, in_header, in_query, takes
from epochal.runtime.http.parameters import Query
from epochal.runtime.http.problem_json import problem_response
from epochal.state.errors import EpochalError, Refused
from epochal.state.messages.blob_messages import UploadGrant, UploadProgress
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

log = logging.getLogger(__name__)

MAX_RANGE_DIGITS = 18
"""Maximum length of a number in a `Range`: longer ones are beyond every blob's end."""
_CONTENT_RANGE = {"type": "string", "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$"}
_LOOKS = "1: it is not where an earlier answer led; 2: it has other bytes there."


@dataclass(frozen=True, slots=True)
class BlobPart:
    """The bytes `[start, stop)` of a blob, and the status of the answer that carries them."""

    sha256: Sha256
    start: int
    stop: int
    status: int


class BlobResponse(BytesResponse):
    """A blob in pieces, with a place among the downloads. If the download must end, so does its connection."""

    def __init__(self, handlers: Handlers, client_id: ClientId, part: BlobPart, headers: dict[str, str]) -> None:
        super().__init__(None, part.status, headers)
        self._handlers = handlers
        self._client_id = client_id
        self._part = part
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._handlers.downloads.place(self._client_id) as transfer:
                await self._send_pieces(transfer, receive, send)
        except EpochalError as error:
            if not self._has_begun:
                await problem_response(error)(scope, receive, send)
                return
            log.info("download_ended", extra={"client_id": self._client_id, "reason": str(error)})
            await end_connection(scope, receive)

    async def _send_pieces(self, transfer: Transfer, receive: Receive, send: Send) -> None:
        part = self._part
        async for piece in self._handlers.service.blobs.stream(part.sha256, part.start, part.stop):
            if not self._has_begun:
                await send(self._head())
                self._has_begun = True
            more = part.start + transfer.moved_bytes + len(piece) < part.stop
            body = {"type": "http.response.body", "body": piece, "more_body": more}
            await transfer.move(partial(send, body))
            transfer.moved_bytes += len(piece)
            if has_gone(receive):
                return

    def _head(self) -> Message:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}


def blob_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which blobs are delivered and read."""
    router = APIRouter(route_class=DescribedRoute)
    _add_deliveries(router, handlers)
    _add_reading(router, handlers)
    return router


def _add_deliveries(router: APIRouter, handlers: Handlers) -> None:
    rest = "`bytes FIRST-LAST/SIZE`: the body is the rest of a blob of which the bytes before have arrived."

    @router.put(
        "/v1/blobs/{sha256}",
        summary="Deliver an announced result or checkpoint",
        status_code=201,
        dependencies=[MEMBER],
        openapi_extra=takes(
            in_header("Content-Range", rest, _CONTENT_RANGE), body=BYTES, media_type=BytesResponse.media_type
        ),
    )
    async def put_blob(sha256: str, request: Request) -> Response:
        client_id = caller(handlers, request)
        digest = sha256_of(sha256)
        body = BlobBody(body_pieces(request), content_length(request), request.headers.get("content-range"))
        await handlers.receive_blob(client_id, digest, body)
        return Response(status_code=201)

    @router.get(
        "/v1/blobs/{sha256}/upload",
        summary="How much has arrived of an announced result or checkpoint",
        response_model=UploadProgress,
        dependencies=[MEMBER],
    )
    async def upload_progress(sha256: str, request: Request) -> Response:
        client_id = caller(handlers, request)
        return document_response(await handlers.uploads.progress(client_id, sha256_of(sha256)))

    @router.post(
        "/v1/blobs/{sha256}/grant",
        summary="Where to put an announced result or checkpoint",
        response_model=UploadGrant,
        dependencies=[MEMBER],
    )
    async def grant_upload(sha256: str, request: Request) -> Response:
        client_id = caller(handlers, request)
        digest = sha256_of(sha256)
        handlers.check_upload_rate(client_id, digest)
        return document_response(await handlers.arrivals.grant(client_id, digest))

    @router.post(
        "/v1/blobs/{sha256}/arrival",
        summary="An announced blob is in the object store: take it in",
        status_code=201,
        responses={202: {"description": "Being taken in: ask again"}},
        dependencies=[MEMBER],
    )
    async def note_arrival(sha256: str, request: Request) -> Response:
        client_id = caller(handlers, request)
        is_counted = await handlers.arrivals.arrived(client_id, sha256_of(sha256))
        return Response(status_code=201 if is_counted else 202)


def _add_reading(router: APIRouter, handlers: Handlers) -> None:
    @router.get(
        "/v1/blobs/{sha256}",
        summary="A result or checkpoint, for members and the operator; ranges are supported",
        response_class=BytesResponse,
        responses={
            206: {"description": "The range", "content": {BytesResponse.media_type: {"schema": BYTES}}},
            307: {"description": "It is in an object store"},
        },
        dependencies=[MEMBER, ADMIN],
        openapi_extra=takes(in_header("Range", "One range of bytes."), in_query("looks", WHOLE, _LOOKS, default=0)),
    )
    async def get_blob(sha256: str, request: Request) -> Response:
        client_id = blob_reader(handlers, request)
        digest = sha256_of(sha256)
        handlers.check_revealed(client_id, digest)
        looks = Query(request.scope["query_string"]).whole("looks", 0)
        small = handlers.service.blobs.recent(digest)
        size = await handlers.service.blobs.size(digest) if small is None else len(small)
        if size is None:
            raise Refused(Refusal.NOT_FOUND, handlers.service.lost_blobs.asked_for(digest))
        if small is None:
            elsewhere = await handlers.arrivals.url_of(digest, is_missed=looks > 0, is_other=looks > 1)
            if elsewhere is not None:
                return Response(status_code=307, headers={"Location": elsewhere, "Cache-Control": "no-store"})
        start, stop, is_part = _range(request.headers.get("range"), size)
        headers = {
            "Content-Length": str(stop - start),
            "Accept-Ranges": "bytes",
            "ETag": f'"{digest}"',
            "Cache-Control": IMMUTABLE,
        }
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        status = 206 if is_part else 200
        if small is not None:
            return BytesResponse(small[start:stop], status, headers)
        sent = BlobPart(digest, start, stop, status)
        return BlobResponse(handlers, client_id, sent, headers)


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
