"""Routes of members: joining, reports, the run document by long poll, what they read of a run, and blobs.

Anyone may read documents, results and outcomes, but for what a single member needs of an outcome.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from epochal.coordinator.api.encoded_documents import EncodedDocuments, long_document
from epochal.coordinator.api.request_parts import (
    ADMIN,
    MEMBER,
    RUN,
    STALE_HEADER,
    WAIT_S,
    blob_reader,
    caller,
    reader_of,
    sha256_of,
)
from epochal.coordinator.auth.join_hosts import JoinHosts
from epochal.coordinator.blobs.resumable_uploads import BlobBody
from epochal.coordinator.blobs.transfers import Transfer
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.stimuli import ClientWithdrew
from epochal.coordinator.run.long_polls import LongPolls
from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.connections.shedding import end_connection, gone_of, vouch_for
from epochal.runtime.http.bodies import (
    IMMUTABLE,
    body_pieces,
    content_length,
    document_response,
    has_gone,
    json_response,
    read_message,
    read_short_body,
)
from epochal.runtime.http.openapi import (
    BYTES,
    TEXT,
    WHOLE,
    BytesResponse,
    DescribedRoute,
    Number,
    in_header,
    in_query,
    takes,
)
from epochal.runtime.http.parameters import Query, parse_whole
from epochal.runtime.http.problem_json import problem_response
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.documents import (
    OWN_OUTCOME_HEADER,
    CheckpointRef,
    KeptCheckpoints,
    Outcome,
    OwnOutcome,
    Roster,
    RunDocument,
    UpdateRef,
    WorkList,
)
from epochal.state.errors import EpochalError, Refused
from epochal.state.messages import requests as messages
from epochal.state.messages.blob_messages import UploadGrant, UploadProgress
from epochal.state.messages.deliveries import MAX_DELIVERY_BYTES, MEDIA_TYPE, parse_delivery
from epochal.state.messages.receipts import Receipt, ReceiptRequest
from epochal.state.messages.requests import Challenge, ChallengeRequest, JoinRequest, ResultsPage, Session, Standing
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, canonical_json

REPORTS: tuple[tuple[type[messages.Report], str], ...] = (
    (messages.ReadyReport, "Report that the model and the data are held"),
    (messages.ResultCommitment, "Commit to a result"),
    (messages.Attestation, "Attest which results arrived in time"),
    (messages.CheckpointReport, "Report the digest of a replica"),
    (messages.FailureReport, "Report that the step failed"),
    (messages.TimesReport, "Report the times of the last round, before leaving"),
    (messages.LeavingReport, "Report that no round after the one under way is to count on this member"),
)
"""Message and summary of each report; every answer is the client's standing."""
BEFORE_THE_FIRST = -1
"""The version that a reader names who has seen no document."""
_AFTER = in_query(
    "after", {**WHOLE, "minimum": BEFORE_THE_FIRST}, "The version that the reader has.", default=BEFORE_THE_FIRST
)
log = logging.getLogger(__name__)

MAX_RANGE_DIGITS = 18
"""Maximum length of a number in a `Range`: longer ones are beyond every blob's end."""
_CONTENT_RANGE = {"type": "string", "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$"}
_LOOKS = "1: it is not where an earlier answer led; 2: it has other bytes there."


def membership_routes(handlers: Handlers, hosts: JoinHosts) -> APIRouter:
    """Return the routes by which clients join, stay, report and leave, which join under these hosts."""
    router = APIRouter(route_class=DescribedRoute)
    clients = f"{RUN}/clients"

    @router.post(
        f"{clients}/challenge",
        summary="A nonce to sign",
        response_model=Challenge,
        openapi_extra=takes(body=ChallengeRequest),
    )
    async def challenge(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.challenge(await read_message(request, ChallengeRequest)))

    @router.post(clients, summary="Join", response_model=Session, openapi_extra=takes(body=JoinRequest))
    async def join(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        joining = await read_message(request, JoinRequest)
        reached_at, _ = request.scope.get("server") or (None, None)
        hosts.check(joining.host, reached_at)
        address = None if request.client is None else sender_of(request.client.host)
        session = await handlers.join(joining, address)
        vouch_for(request.scope, session.client_id)
        return document_response(session)

    @router.post(
        f"{clients}/receipt",
        summary="A signed receipt of what a key has contributed",
        response_model=Receipt,
        openapi_extra=takes(body=ReceiptRequest),
    )
    async def receipt(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        asked = await read_message(request, ReceiptRequest)
        reached_at, _ = request.scope.get("server") or (None, None)
        hosts.check(asked.host, reached_at)
        return document_response(handlers.receipt(asked), "no-store")

    @router.get(
        f"{clients}/me", summary="Which of my messages have arrived", response_model=Standing, dependencies=[MEMBER]
    )
    async def standing(run_id: str, request: Request) -> Response:
        del run_id
        return document_response(handlers.standing(caller(handlers, request)))

    @router.delete(f"{clients}/me", summary="Withdraw", status_code=204, dependencies=[MEMBER])
    async def withdraw(run_id: str, request: Request) -> Response:
        del run_id
        await handlers.submit(ClientWithdrew(caller(handlers, request)))
        return Response(status_code=204)

    @router.post(
        f"{clients}/me/token", summary="Renew the token and the ticket", response_model=Session, dependencies=[MEMBER]
    )
    async def renew(run_id: str, request: Request) -> Response:
        del run_id
        client_id = caller(handlers, request)
        handlers.check_rate(client_id)
        return document_response(handlers.renew(client_id))

    _add_reports(router, handlers)
    return router


def _add_reports(router: APIRouter, handlers: Handlers) -> None:
    @router.post(
        f"{RUN}/deliveries",
        summary="Commit to a small result: a ResultCommitment on a line of JSON, and the result's bytes",
        response_model=Standing,
        dependencies=[MEMBER],
        openapi_extra=takes(body=BYTES, media_type=MEDIA_TYPE),
    )
    async def deliver(run_id: str, request: Request) -> Response:
        del run_id
        client_id = caller(handlers, request)
        commitment, data = parse_delivery(await read_short_body(request, MAX_DELIVERY_BYTES))
        return document_response(await handlers.deliver(client_id, commitment, data))

    def add_report(kind: type[messages.Report], summary: str) -> None:
        place = messages.REPORT_PATHS[kind]

        @router.post(
            f"{RUN}/{place}",
            name=f"report_{place}",
            summary=summary,
            response_model=Standing,
            dependencies=[MEMBER],
            openapi_extra=takes(body=kind),
        )
        async def report(run_id: str, request: Request) -> Response:
            del run_id
            client_id = caller(handlers, request)
            return document_response(await handlers.report(client_id, await read_message(request, kind)))

    for kind, summary in REPORTS:
        add_report(kind, summary)


def document_routes(handlers: Handlers, polls: LongPolls) -> APIRouter:
    """Return the route: `GET /v1/runs/{run_id}?after=V&lineage=L&wait_s=W`."""
    router, service = APIRouter(route_class=DescribedRoute), handlers.service

    @router.get(
        RUN,
        summary="The run document, as soon as it is newer than `after`; long poll",
        response_model=RunDocument,
        responses={304: {"description": "Nothing newer within `wait_s`"}},
        openapi_extra=takes(_AFTER, in_query("lineage", TEXT), WAIT_S, in_header("If-None-Match")),
    )
    async def run_document(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        reader = reader_of(handlers, request.scope)
        query = Query(request.scope["query_string"])
        after, lineage = query.whole("after", BEFORE_THE_FIRST, BEFORE_THE_FIRST), query.text("lineage")
        wait_s = query.seconds("wait_s")
        if reader.client_id is not None:
            await service.older_copy.asked(reader.client_id, after, lineage)
        async with polls.place(reader, wait_s):
            with service.waiting(reader.client_id, gone_of(request.scope, partial(has_gone, request.receive))):
                published = await handlers.wait_published(after, lineage, wait_s, is_stranger=reader.is_stranger)
        if published is None:
            handlers.check_store(reader.client_id)
        marks = {STALE_HEADER: "true"} if _may_be_stale(handlers) else {}
        if published is None or published.etag == request.headers.get("if-none-match"):
            etag = service.published.etag if published is None else published.etag
            return Response(status_code=304, headers={"ETag": etag, **marks})
        headers = {"Cache-Control": "no-cache", "ETag": published.etag, **marks}
        if reader.client_id is not None:
            own = service.readers.own_outcome_with(published.document, reader.client_id)
            if own is not None:
                headers[OWN_OUTCOME_HEADER] = own.decode("ascii")
        return Response(published.body, headers=headers, media_type="application/json")

    return router


def _may_be_stale(handlers: Handlers) -> bool:
    """Return whether other coordinators may have kept what this one cannot read now."""
    service = handlers.service
    return service.health.problem is not None and not service.replicas.is_alone


def reading_routes(handlers: Handlers, polls: LongPolls) -> APIRouter:
    """Return the routes that anyone may read."""
    router = APIRouter(route_class=DescribedRoute)

    @router.get("/v1/runs", summary="The run that this coordinator serves", response_model=dict[str, list[str]])
    async def runs() -> Response:
        return document_response({"runs": [handlers.service.run.state_file.run_id]})

    _add_documents(router, handlers)

    @router.get(
        f"{RUN}/rounds/{{step}}/results",
        summary="Verified results of the round under way, as they arrive; long poll",
        response_model=ResultsPage,
        openapi_extra=takes(in_query("attempt", WHOLE, default=0), in_query("after", WHOLE, default=0), WAIT_S),
    )
    async def results(run_id: str, step: Number, request: Request) -> Response:
        handlers.check_run(run_id)
        reader = reader_of(handlers, request.scope)
        query, number = Query(request.scope["query_string"]), parse_whole("step", step)
        attempt, after, wait_s = query.whole("attempt", 0), query.whole("after", 0), query.seconds("wait_s")
        async with polls.place(reader, wait_s):
            with handlers.service.waiting(reader.client_id, gone_of(request.scope, partial(has_gone, request.receive))):
                page = await handlers.results(number, attempt, after, wait_s, reader)
        if not page.results:
            handlers.check_store(reader.client_id)
        return json_response(handlers.service.readers.pages.encoded(page))

    @router.get(f"{RUN}/checkpoints/latest", summary="The last verified checkpoint", response_model=CheckpointRef)
    async def latest_checkpoint(run_id: str) -> Response:
        handlers.check_run(run_id)
        found = handlers.service.run.models.checkpoint
        if found is None:
            raise Refused(Refusal.NOT_FOUND, "there is no checkpoint yet")
        return document_response(found, "no-cache")

    @router.get(
        f"{RUN}/checkpoints",
        summary="Every verified checkpoint that is held, the newest last",
        response_model=KeptCheckpoints,
    )
    async def kept_checkpoints(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(KeptCheckpoints(handlers.service.run.models.checkpoints), "no-cache")

    return router


def _add_documents(router: APIRouter, handlers: Handlers) -> None:
    """Add the routes of documents that never change, which are compressed once."""
    encoded = EncodedDocuments()

    async def sent(name: str, body: bytes, request: Request) -> Response:
        return await long_document(encoded, name, body, request, IMMUTABLE)

    async def immutable(run_id: str, sha256: str, request: Request) -> Response:
        handlers.check_run(run_id)
        return await sent(sha256, handlers.immutable(sha256_of(sha256)), request)

    for place, kind in (("rosters", Roster), ("work", WorkList)):
        path = f"{RUN}/{place}/{{sha256}}"
        router.add_api_route(path, immutable, summary=f"A {kind.__name__} by digest", response_model=kind)
    router.add_api_route(
        f"{RUN}/manifests/{{sha256}}",
        immutable,
        summary="The parts of a checkpoint by digest",
        response_model=CheckpointManifest,
    )
    for place, words in (("config", "The state file, as JSON,"), ("model", "The model's spec, as JSON,")):
        path, model = f"{RUN}/{place}/{{sha256}}", dict[str, Any]
        router.add_api_route(path, immutable, summary=f"{words} by digest", response_model=model)

    @router.get(f"{RUN}/rounds/{{step}}/update", summary="The update of a step", response_model=UpdateRef)
    async def update(run_id: str, step: Number) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.update(parse_whole("step", step)), "no-cache")

    @router.get(f"{RUN}/rounds/{{step}}/outcome", summary="The outcome of a step", response_model=Outcome)
    async def outcome(run_id: str, step: Number, request: Request) -> Response:
        handlers.check_run(run_id)
        found = handlers.outcome(parse_whole("step", step))
        name = f"{handlers.service.run.identity.lineage} {found.step} {found.attempt} {found.seed}"
        return await sent(name, encoded.plain(name, lambda: canonical_json(found)), request)

    @router.get(
        f"{RUN}/rounds/{{step}}/outcome/mine",
        summary="What a member needs of the outcome of a step",
        response_model=OwnOutcome,
        dependencies=[MEMBER],
    )
    async def own_outcome(run_id: str, step: Number, request: Request) -> Response:
        del run_id
        client_id = caller(handlers, request)
        return document_response(handlers.own_outcome(parse_whole("step", step), client_id))


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
