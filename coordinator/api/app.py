"""The REST service of DESIGN section 5, as a FastAPI application. Routes translate; the handlers do the work."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from coordinator.api.limits import LongPolls
from coordinator.api.long_poll import RUN, RunDocumentEndpoint
from coordinator.api.metrics import CoordinatorMetrics
from coordinator.handlers import Handlers
from runtime.http_bodies import (
    IMMUTABLE,
    bearer_token,
    body_pieces,
    content_length,
    document_response,
    json_response,
    openapi_answer,
    openapi_body,
    openapi_schemas,
    read_message,
    seconds,
    whole_number,
)
from runtime.metrics import MeasuredRequests, metrics_route, new_registry
from runtime.problem_json import handle_error
from state.documents import CheckpointRef, Outcome, Roster, RunDocument, WorkList
from state.errors import EpochalError, Refused
from state.messages import (
    Attestation,
    Challenge,
    ChallengeRequest,
    CheckpointReport,
    FailureReport,
    JoinRequest,
    ReadyReport,
    ResultCommitment,
    ResultsPage,
    RunStatus,
    Session,
    Standing,
)
from state.refusals import Refusal
from state.wire import ClientId, Sha256

DOCUMENTS: tuple[Any, ...] = (
    Attestation,
    Challenge,
    ChallengeRequest,
    CheckpointRef,
    CheckpointReport,
    FailureReport,
    JoinRequest,
    Outcome,
    ReadyReport,
    ResultCommitment,
    ResultsPage,
    Roster,
    RunDocument,
    RunStatus,
    Session,
    Standing,
    WorkList,
)
"""What the routes take and give, for their description."""
_HEX = frozenset("0123456789abcdef")


def create_app(handlers: Handlers, version: str, metrics: CoordinatorMetrics | None = None) -> FastAPI:
    """Return the application over these handlers; its own registry of metrics unless it is given some."""
    metrics = metrics or CoordinatorMetrics(new_registry())
    app = FastAPI(
        title="Epochal coordinator",
        version=version,
        description="Holds one training run. Errors are application/problem+json.",
        redoc_url=None,
    )
    for kind in (EpochalError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, handle_error)
    polls = LongPolls()
    metrics.watch(handlers.service, polls)
    app.add_middleware(MeasuredRequests, metrics=metrics.http)
    router = APIRouter()
    _add_reading(router, handlers, polls)
    _add_membership(router, handlers)
    _add_reports(router, handlers)
    _add_blobs(router, handlers)
    _add_operator(router, handlers)
    _add_health(router, handlers)
    app.include_router(router)
    app.router.routes.append(metrics_route(metrics.registry))
    app.router.routes.append(Route(RUN, RunDocumentEndpoint(handlers, polls), methods=["GET"], name="run_document"))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description, with the raw long-poll route and the documents' schemas added."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        parameters = [
            {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "after", "in": "query", "schema": {"type": "integer", "default": -1}},
            {"name": "lineage", "in": "query", "schema": {"type": "string"}},
            {"name": "wait_s", "in": "query", "schema": {"type": "number", "default": 0}},
        ]
        schema.setdefault("components", {}).setdefault("schemas", {}).update(openapi_schemas(DOCUMENTS))
        answers = {str(key): value for key, value in openapi_answer(RunDocument).items()}
        schema["paths"][RUN] = {
            "get": {
                "summary": "The run document, as soon as it is newer than `after`; long poll",
                "parameters": parameters,
                "responses": {**answers, "304": {"description": "Nothing newer within `wait_s`"}},
            }
        }
    return app.openapi_schema or {}


def _sha256(text: str) -> Sha256:
    if len(text) != 64 or not _HEX.issuperset(text):
        raise Refused(Refusal.NOT_FOUND, f"{text[:80]!r} is no SHA-256 in lowercase hex")
    return Sha256(text)


def _caller(handlers: Handlers, request: Request) -> ClientId:
    run_id = request.path_params.get("run_id")
    if run_id is not None:
        handlers.check_run(run_id)
    return handlers.authenticate(bearer_token(request.headers))


def _add_reading(router: APIRouter, handlers: Handlers, polls: LongPolls) -> None:
    @router.get("/v1/runs", summary="The run that this coordinator serves")
    async def runs() -> Response:
        return document_response({"runs": [handlers.service.run.state_file.run_id]})

    async def immutable(run_id: str, sha256: str) -> Response:
        handlers.check_run(run_id)
        return json_response(handlers.immutable(_sha256(sha256)), IMMUTABLE)

    for place, kind in (("rosters", Roster), ("work", WorkList)):
        path = f"{RUN}/{place}/{{sha256}}"
        router.add_api_route(path, immutable, summary=f"A {kind.__name__} by digest", responses=openapi_answer(kind))
    router.add_api_route(f"{RUN}/config/{{sha256}}", immutable, summary="The run's configuration by digest")

    @router.get(f"{RUN}/rounds/{{step}}/outcome", summary="What step applied", responses=openapi_answer(Outcome))
    async def outcome(run_id: str, step: int) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.outcome(step), IMMUTABLE)

    @router.get(
        f"{RUN}/rounds/{{step}}/results",
        summary="Verified results of the round under way, as they come; long poll",
        responses=openapi_answer(ResultsPage),
    )
    async def results(run_id: str, step: int, request: Request) -> Response:
        handlers.check_run(run_id)
        token = bearer_token(request.headers)
        client_id = None if token is None else handlers.authenticate(token)
        attempt, after = whole_number(request, "attempt", 0), max(0, whole_number(request, "after", 0))
        with polls.place(client_id):
            page = await handlers.results(step, attempt, after, seconds(request, "wait_s", 0.0))
        if client_id is not None:
            handlers.service.heard(client_id)
        return document_response(page)

    @router.get(
        f"{RUN}/checkpoints/latest", summary="The last verified checkpoint", responses=openapi_answer(CheckpointRef)
    )
    async def latest_checkpoint(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.latest_checkpoint(), "no-cache")


def _add_membership(router: APIRouter, handlers: Handlers) -> None:
    clients = f"{RUN}/clients"

    @router.post(
        f"{clients}/challenge",
        summary="A nonce to sign",
        openapi_extra=openapi_body(ChallengeRequest),
        responses=openapi_answer(Challenge),
    )
    async def challenge(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.challenge(await read_message(request, ChallengeRequest)))

    @router.post(clients, summary="Join", openapi_extra=openapi_body(JoinRequest), responses=openapi_answer(Session))
    async def join(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        return document_response(await handlers.join(await read_message(request, JoinRequest)))

    @router.get(f"{clients}/me", summary="What has arrived of mine", responses=openapi_answer(Standing))
    async def standing(run_id: str, request: Request) -> Response:
        del run_id
        return document_response(handlers.standing(_caller(handlers, request)))

    @router.delete(f"{clients}/me", summary="Withdraw", status_code=204)
    async def withdraw(run_id: str, request: Request) -> Response:
        del run_id
        await handlers.withdraw(_caller(handlers, request))
        return Response(status_code=204)

    @router.post(f"{clients}/me/token", summary="Renew the token and the ticket", responses=openapi_answer(Session))
    async def renew(run_id: str, request: Request) -> Response:
        del run_id
        return document_response(handlers.renew(_caller(handlers, request)))


def _add_reports(router: APIRouter, handlers: Handlers) -> None:
    reports: tuple[tuple[str, Any, Any, str], ...] = (
        ("ready", ReadyReport, handlers.report_ready, "I hold the model and the data"),
        ("results", ResultCommitment, handlers.commit_result, "Commit to a result"),
        ("attestations", Attestation, handlers.attest, "Attest what arrived in time"),
        ("checkpoints", CheckpointReport, handlers.report_checkpoint, "Claim a replica's digest"),
        ("failures", FailureReport, handlers.report_failure, "I cannot take this step"),
    )

    def add(place: str, kind: Any, take: Any, summary: str) -> None:
        async def report(run_id: str, request: Request) -> Response:
            del run_id
            client_id = _caller(handlers, request)
            return document_response(await take(client_id, await read_message(request, kind)))

        router.add_api_route(
            f"{RUN}/{place}",
            report,
            methods=["POST"],
            name=f"report_{place}",
            summary=summary,
            openapi_extra=openapi_body(kind),
            responses=openapi_answer(Standing),
        )

    for place, kind, take, summary in reports:
        add(place, kind, take, summary)


def _add_blobs(router: APIRouter, handlers: Handlers) -> None:
    @router.put("/v1/blobs/{sha256}", summary="Deliver an announced result or checkpoint", status_code=201)
    async def put_blob(sha256: str, request: Request) -> Response:
        client_id = _caller(handlers, request)
        digest = _sha256(sha256)
        await handlers.receive_blob(client_id, digest, body_pieces(request), content_length(request))
        return Response(status_code=201)

    @router.get("/v1/blobs/{sha256}", summary="A result or checkpoint by content; ranges are served")
    async def get_blob(sha256: str, request: Request) -> Response:
        _caller(handlers, request)
        digest = _sha256(sha256)
        size = await handlers.service.blobs.size(digest)
        if size is None:
            raise Refused(Refusal.NOT_FOUND, f"no blob {digest} is held")
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


def _range(header: str | None, size: int) -> tuple[int, int, bool]:
    """The bytes that a Range header asks for, as (start, stop, whether it is a part); a header of many is ignored."""
    unit, _, spec = (header or "").partition("=")
    first, dash, last = spec.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).isdecimal() or not (first + last).isascii():
        return 0, size, False
    if first:
        start, stop = int(first), min(size, int(last) + 1 if last else size)
    else:
        start, stop = max(0, size - int(last)), size
    if start >= stop:
        raise Refused(Refusal.RANGE_NOT_SATISFIABLE, f"the blob has {size} bytes", size_bytes=size)
    return start, stop, True


def _add_operator(router: APIRouter, handlers: Handlers) -> None:
    def check(run_id: str, request: Request) -> None:
        handlers.check_run(run_id)
        handlers.check_admin(bearer_token(request.headers))

    @router.get(f"{RUN}/status", summary="What an operator asks", responses=openapi_answer(RunStatus))
    async def status(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.status())

    @router.post(f"{RUN}/pause", summary="Hold after this round (admin token)", status_code=204)
    async def pause(run_id: str, request: Request) -> Response:
        check(run_id, request)
        await handlers.pause()
        return Response(status_code=204)

    @router.post(f"{RUN}/resume", summary="Go on (admin token)", status_code=204)
    async def resume(run_id: str, request: Request) -> Response:
        check(run_id, request)
        await handlers.resume()
        return Response(status_code=204)

    @router.post(f"{RUN}/clients/{{client_id}}/eject", summary="Remove a client (admin token)", status_code=204)
    async def eject(run_id: str, client_id: str, request: Request) -> Response:
        check(run_id, request)
        await handlers.eject(ClientId(client_id))
        return Response(status_code=204)


def _add_health(router: APIRouter, handlers: Handlers) -> None:
    @router.get("/healthz", summary="The process lives")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @router.get("/readyz", summary="The run is loaded and can be kept")
    async def readyz() -> Response:
        service = handlers.service
        if service.accepting:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"not accepting: {service.failure or 'the run is not loaded yet'}\n", 503)
