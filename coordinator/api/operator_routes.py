"""Routes for the coordinator's operator: status, pause, resume, eject, quarantine, health."""

from collections.abc import Callable, Iterable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from epochal.coordinator.api.compressed import long_document
from epochal.coordinator.api.encoded_documents import EncodedDocuments
from epochal.coordinator.api.request_parts import RUN, sha256_of
from epochal.coordinator.auth.admin import OPERATOR
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.run import Run
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import (
    bearer_token,
    body_pieces,
    content_length,
    document_response,
    openapi_answer,
    openapi_body,
    read_message,
)
from epochal.state.documents import CheckpointRef
from epochal.state.generations import DataAppendSetting, DataHistory
from epochal.state.messages.evaluation_reports import EvaluationHistory, EvaluationReport
from epochal.state.messages.requests import (
    DataServerToken,
    FailedData,
    FingerprintSetting,
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
            self._body, self._made_s, self._of = canonical_json(self._handlers.status()), now_s, shown
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


def operator_routes(handlers: Handlers) -> APIRouter:
    """Return the operator's routes. Those that change the run need the admin token."""
    router = APIRouter()
    status_bytes = StatusBytes(handlers)

    def check(run_id: str, request: Request) -> None:
        check_operator(handlers, run_id, request)

    @router.get(f"{RUN}/status", summary="The run as an operator sees it", responses=openapi_answer(RunStatus))
    async def status(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        return await status_bytes.answer(request)

    @router.post(f"{RUN}/pause", summary="Pause after this round (admin token)", status_code=204)
    async def pause(run_id: str, request: Request) -> Response:
        check(run_id, request)
        await handlers.pause()
        return Response(status_code=204)

    @router.post(f"{RUN}/resume", summary="Continue (admin token)", status_code=204)
    async def resume(run_id: str, request: Request) -> Response:
        check(run_id, request)
        await handlers.resume()
        return Response(status_code=204)

    @router.post(f"{RUN}/clients/{{client_id}}/eject", summary="Remove a client (admin token)", status_code=204)
    async def eject(run_id: str, client_id: str, request: Request) -> Response:
        check(run_id, request)
        await handlers.eject(ClientId(client_id))
        return Response(status_code=204)

    @router.post(
        f"{RUN}/tokens/data-server",
        summary="A new token for a data server (admin token)",
        responses=openapi_answer(DataServerToken),
    )
    async def data_server_token(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return document_response(handlers.data_server_token())

    @router.get(f"{RUN}/quarantine", summary="The data that failed, and why", responses=openapi_answer(FailedData))
    async def quarantine(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.failed_data())

    @router.post(
        f"{RUN}/quarantine/release",
        summary="Attempt quarantined batches again (admin token)",
        openapi_extra=openapi_body(QuarantineRelease),
        responses=openapi_answer(QuarantineRelease),
    )
    async def release(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return document_response(await handlers.release(await read_message(request, QuarantineRelease)))

    return router


def evaluation_routes(handlers: Handlers) -> APIRouter:
    """Return the routes of the run's evaluations. Anyone may read them."""
    router = APIRouter()

    @router.get(f"{RUN}/evaluations", summary="The run's evaluations", responses=openapi_answer(EvaluationHistory))
    async def evaluations(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(await handlers.evaluations(), "no-cache")

    @router.post(
        f"{RUN}/evaluations",
        summary="Record the loss of a checkpoint (admin token)",
        status_code=204,
        openapi_extra=openapi_body(EvaluationReport),
    )
    async def record_evaluation(run_id: str, request: Request) -> Response:
        check_operator(handlers, run_id, request)
        await handlers.record_evaluation(await read_message(request, EvaluationReport))
        return Response(status_code=204)

    return router


def check_operator(handlers: Handlers, run_id: str, request: Request) -> None:
    """Raise `Refused` unless the request has the admin token, and is about the run that is served."""
    handlers.check_run(run_id)
    handlers.check_admin(bearer_token(request.headers))
    vouch_for(request.scope, OPERATOR)


def origin_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which an operator decides what a run starts from: its model and its data."""
    router = APIRouter()

    @router.put(
        f"{RUN}/genesis/{{sha256}}",
        summary="Deliver the run's first checkpoint (admin token)",
        status_code=201,
        responses=openapi_answer(CheckpointRef, 201),
    )
    async def put_genesis(run_id: str, sha256: str, request: Request) -> Response:
        check_operator(handlers, run_id, request)
        digest = sha256_of(sha256)
        held = await handlers.receive_genesis(digest, body_pieces(request), content_length(request))
        return document_response(held, status=201)

    @router.put(
        f"{RUN}/fingerprint",
        summary="Pin the data that the run trains on (admin token)",
        status_code=204,
        openapi_extra=openapi_body(FingerprintSetting),
    )
    async def put_fingerprint(run_id: str, request: Request) -> Response:
        check_operator(handlers, run_id, request)
        await handlers.set_fingerprint(await read_message(request, FingerprintSetting))
        return Response(status_code=204)

    @router.get(
        f"{RUN}/data-generations", summary="The run's data, as they grew", responses=openapi_answer(DataHistory)
    )
    async def data_generations(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(DataHistory(handlers.service.run.state_file.data_generations), "no-cache")

    @router.put(
        f"{RUN}/data-generations",
        summary="Append files to the run's data (admin token)",
        openapi_extra=openapi_body(DataAppendSetting),
        responses=openapi_answer(DataHistory),
    )
    async def put_data_generations(run_id: str, request: Request) -> Response:
        check_operator(handlers, run_id, request)
        await handlers.append_data((await read_message(request, DataAppendSetting)).appended)
        return document_response(DataHistory(handlers.service.run.state_file.data_generations))

    return router


def health_routes(handlers: Handlers, notes: Callable[[], Iterable[str]]) -> APIRouter:
    """Return the routes that tell whether the process is alive and ready.

    Args:
        handlers: the coordinator.
        notes: returns lines on what is refused to some although the coordinator is ready.
    """
    router = APIRouter()

    @router.get("/healthz", summary="Whether the process is alive")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @router.get("/readyz", summary="Whether the run is loaded and messages are accepted")
    async def readyz() -> Response:
        service = handlers.service
        if service.accepting:
            return PlainTextResponse("".join(f"{line}\n" for line in ("ready", *notes())))
        return PlainTextResponse(f"not accepting: {service.health.problem or 'the run is not loaded yet'}\n", 503)

    return router
