"""Routes for the coordinator's operator: status, pause, resume, eject, absolve, quarantine, health."""

from collections.abc import Callable, Iterable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from epochal.coordinator.api.compressed import long_document
from epochal.coordinator.api.encoded_documents import EncodedDocuments
from epochal.coordinator.api.request_parts import RUN, open_router, operator_router, sha256_of
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.status import failed_data_of
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.run import Run
from epochal.runtime.http.bodies import body_pieces, content_length, document_response, read_message
from epochal.runtime.http.openapi import BYTES, BytesResponse, DescribedRoute, takes
from epochal.state.documents import CheckpointRef
from epochal.state.messages.audit_reports import AuditRecord
from epochal.state.messages.evaluation_reports import EvaluationHistory, EvaluationReport
from epochal.state.messages.requests import (
    FailedData,
    FingerprintSetting,
    ProgramKind,
    ProgramToken,
    QuarantineRelease,
    RunStatus,
)
from epochal.state.wire import ClientId, canonical_json

MAX_STATUS_AGE_S = 0.25
"""Time for which a status is shown again: listing hundreds of members takes a millisecond."""
STATUS_WAIT_S = 1.0
"""Maximum time for which a status waits, after a start, for losses and evaluations, which are read from the journal."""


class StatusBytes:
    """The run's status as JSON, made once for all who ask within `MAX_STATUS_AGE_S`, unless the run has changed."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._body = b""
        self._made_s = -MAX_STATUS_AGE_S
        self._of: tuple[Run, str | None] | None = None
        self._made_count = 0
        self._encoded = EncodedDocuments(most=1)

    def __call__(self) -> bytes:
        service = self._handlers.service
        now_s, shown = service.now_s(), (service.run, service.health.problem)
        is_same = self._of is not None and shown[0] is self._of[0] and shown[1] == self._of[1]
        if not is_same or now_s - self._made_s >= MAX_STATUS_AGE_S:
            self._body, self._made_s, self._of = canonical_json(self._handlers.insight.status()), now_s, shown
            self._made_count += 1
        return self._body

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request, compressed if the status is long and its reader takes that."""
        insight = self._handlers.insight
        await insight.ready(STATUS_WAIT_S)
        if insight.known is not None:
            await insight.history.explanations.refresh(insight.known, insight.run)
        body = self()
        return await long_document(self._encoded, str(self._made_count), body, request)


def status_routes(handlers: Handlers) -> APIRouter:
    """Return the routes of what an operator sees, which anyone may read."""
    router = open_router(handlers)
    status_bytes = StatusBytes(handlers)

    @router.get(f"{RUN}/status", summary="The run as an operator sees it", response_model=RunStatus)
    async def status(request: Request) -> Response:
        return await status_bytes.answer(request)

    @router.get(f"{RUN}/quarantine", summary="The data that failed, and why", response_model=FailedData)
    async def quarantine() -> Response:
        return document_response(failed_data_of(handlers.service.run))

    @router.get(f"{RUN}/evaluations", summary="The run's evaluations", response_model=EvaluationHistory)
    async def evaluations() -> Response:
        return document_response(await handlers.insight.evaluations(), "no-cache")

    return router


def operator_routes(handlers: Handlers) -> APIRouter:
    """Return the routes that change the run; they need the admin token."""
    router = operator_router(handlers)
    _add_commands(router, handlers)
    _add_origin(router, handlers)
    return router


def _add_commands(router: APIRouter, handlers: Handlers) -> None:

    @router.post(f"{RUN}/pause", summary="Pause after this round", status_code=204)
    async def pause() -> Response:
        await handlers.submit(stimuli.PauseRequested())
        return Response(status_code=204)

    @router.post(f"{RUN}/resume", summary="Continue", status_code=204)
    async def resume() -> Response:
        await handlers.submit(stimuli.ResumeRequested())
        return Response(status_code=204)

    @router.post(f"{RUN}/clients/{{client_id}}/eject", summary="Remove a client", status_code=204)
    async def eject(client_id: str) -> Response:
        await handlers.submit(stimuli.ClientEjected(ClientId(client_id)))
        return Response(status_code=204)

    @router.post(f"{RUN}/clients/{{client_id}}/absolve", summary="Let a convicted client join again", status_code=204)
    async def absolve(client_id: str) -> Response:
        await handlers.submit(stimuli.ClientAbsolved(ClientId(client_id)))
        return Response(status_code=204)

    @router.post(
        f"{RUN}/tokens/{{kind}}",
        summary="A new token for a data server, checker or verifier",
        response_model=ProgramToken,
    )
    async def program_token(kind: ProgramKind) -> Response:
        return document_response(handlers.program_token(kind))

    @router.post(
        f"{RUN}/quarantine/release",
        summary="Attempt quarantined batches again",
        response_model=QuarantineRelease,
        openapi_extra=takes(body=QuarantineRelease),
    )
    async def release(request: Request) -> Response:
        return document_response(await handlers.release(await read_message(request, QuarantineRelease)))

    @router.post(
        f"{RUN}/evaluations",
        summary="Record the loss of a checkpoint",
        status_code=204,
        openapi_extra=takes(body=EvaluationReport),
    )
    async def record_evaluation(request: Request) -> Response:
        await handlers.record_evaluation(await read_message(request, EvaluationReport))
        return Response(status_code=204)

    @router.post(
        f"{RUN}/audits", summary="Record what an audit found", status_code=204, openapi_extra=takes(body=AuditRecord)
    )
    async def record_audit(request: Request) -> Response:
        await handlers.submit(stimuli.AuditReported(await read_message(request, AuditRecord)))
        return Response(status_code=204)


def _add_origin(router: APIRouter, handlers: Handlers) -> None:
    """Add the routes of what a run starts from: its model and its data."""

    @router.put(
        f"{RUN}/genesis/{{sha256}}",
        summary="Deliver the run's first checkpoint",
        status_code=201,
        response_model=CheckpointRef,
        openapi_extra=takes(body=BYTES, media_type=BytesResponse.media_type),
    )
    async def put_genesis(sha256: str, request: Request) -> Response:
        digest = sha256_of(sha256)
        held = await handlers.receive_genesis(digest, body_pieces(request), content_length(request))
        return document_response(held, status=201)

    @router.put(
        f"{RUN}/fingerprint",
        summary="Pin the data that the run trains on",
        status_code=204,
        openapi_extra=takes(body=FingerprintSetting),
    )
    async def put_fingerprint(request: Request) -> Response:
        setting = await read_message(request, FingerprintSetting)
        await handlers.submit(stimuli.DataFingerprintSet(setting.data_fingerprint))
        return Response(status_code=204)


def health_routes(handlers: Handlers, notes: Callable[[], Iterable[str]]) -> APIRouter:
    """Return the routes that report whether the process is alive and ready.

    Args:
        handlers: the coordinator.
        notes: returns lines on what is refused to some although the coordinator is ready.
    """
    router = APIRouter(route_class=DescribedRoute, default_response_class=PlainTextResponse)

    @router.get("/healthz", summary="Whether the process is alive")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @router.get(
        "/readyz",
        summary="Whether the run is loaded and messages are accepted",
        responses={503: {"description": "Not accepting messages, and why", "content": {"text/plain": {}}}},
    )
    async def readyz() -> Response:
        service = handlers.service
        if service.accepting:
            return PlainTextResponse("".join(f"{line}\n" for line in ("ready", *notes())))
        return PlainTextResponse(f"not accepting: {service.health.problem or 'the run is not loaded yet'}\n", 503)

    return router
