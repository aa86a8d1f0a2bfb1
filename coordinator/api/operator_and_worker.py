"""Routes of the operator (admin token), of checkers and of verifiers, and those that show the run's state and health.

What an operator sees, anyone may read.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from epochal.coordinator.api.encoded_documents import EncodedDocuments, long_document
from epochal.coordinator.api.request_parts import (
    CHECKER,
    RUN,
    VERIFIER,
    WAIT_S,
    PublicKey,
    open_router,
    operator_router,
    sha256_of,
)
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.status import failed_data_of
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.commands.planned_changes import first_free_step
from epochal.coordinator.machine.commands.rewinding import choices_of
from epochal.coordinator.machine.parts.run_identity import LINEAGE_CHARACTERS
from epochal.coordinator.machine.run import Run
from epochal.coordinator.operator_requests import access_of, checked_key, invitations_of, invite
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import (
    bearer_token,
    body_pieces,
    content_length,
    document_response,
    read_message,
    steady_body_pieces,
)
from epochal.runtime.http.openapi import BYTES, WHOLE, BytesResponse, DescribedRoute, in_query, takes
from epochal.runtime.http.parameters import MAX_SHOWN_CHARS, Query
from epochal.state.documents import CheckpointRef
from epochal.state.errors import Refused
from epochal.state.messages.access_commands import (
    AccessList,
    FinishSetting,
    InvitationList,
    InvitationRequest,
    MadeInvitation,
)
from epochal.state.messages.audit_reports import AuditRecord
from epochal.state.messages.blob_messages import CheckVerdict, LeasedCheck, ParameterNames, RenewedLease
from epochal.state.messages.change_messages import ChangeList, ChangeRequest, announced_changes
from epochal.state.messages.evaluation_reports import EvaluationHistory, EvaluationReport
from epochal.state.messages.replay_messages import (
    CalibrationReport,
    DataTicket,
    LeasedReplay,
    ReplayFailure,
    ReplayReport,
    ScoreReport,
)
from epochal.state.messages.requests import (
    VERIFIER_PREFIX,
    FailedData,
    FingerprintSetting,
    ProgramKind,
    ProgramToken,
    QuarantineRelease,
    RunStatus,
)
from epochal.state.messages.rewinds import RewindChoices, RewindRequest
from epochal.state.messages.slice_messages import LeasedSlice
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, canonical_json

MAX_STATUS_AGE_S = 0.25
"""Time for which a status is shown again: listing hundreds of members takes a millisecond."""
STATUS_WAIT_S = 1.0
"""Maximum time for which a status waits, after a start, for losses and evaluations, which are read from the journal."""
_WORKER = in_query(
    "worker", {"type": "string", "pattern": "^[0-9a-f]{32}$"}, "The process that asks, as it named itself."
)
_NAME = re.compile("[0-9a-f]{32}")
VerifierReport: TypeAlias = ReplayReport | ScoreReport | ReplayFailure | CalibrationReport
REPORTS: tuple[tuple[str, type[VerifierReport], str], ...] = (
    ("replays/reports", ReplayReport, "How far a result is from its replay"),
    ("replays/scores", ScoreReport, "What a result is worth, where results are not computed again"),
    ("replays/failures", ReplayFailure, "Why a result cannot be computed again"),
    ("calibrations", CalibrationReport, "How far apart honest repetitions of the same work are"),
)
"""What verifiers report: where, its kind, and what that is."""


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


def access_routes(handlers: Handlers) -> APIRouter:
    """Return the routes."""
    router = operator_router(handlers)

    @router.put(
        f"{RUN}/finish",
        summary="End the run after a step, or take that back",
        status_code=204,
        openapi_extra=takes(body=FinishSetting),
    )
    async def finish(request: Request) -> Response:
        setting = await read_message(request, FinishSetting)
        await handlers.submit(stimuli.FinishRequested(setting.after_step))
        return Response(status_code=204)

    @router.post(
        f"{RUN}/invitations",
        summary="Invite clients; the answer has the code",
        response_model=MadeInvitation,
        openapi_extra=takes(body=InvitationRequest),
    )
    async def make_invitation(request: Request) -> Response:
        return document_response(await invite(handlers, await read_message(request, InvitationRequest)))

    @router.get(f"{RUN}/invitations", summary="The run's invitations, without codes", response_model=InvitationList)
    async def invitations() -> Response:
        return document_response(invitations_of(handlers.service.run, handlers.service.now_s()))

    @router.delete(f"{RUN}/invitations/{{sha256}}", summary="Revoke an invitation", status_code=204)
    async def revoke(sha256: str) -> Response:
        await handlers.submit(stimuli.InvitationRevoked(sha256_of(sha256)))
        return Response(status_code=204)

    @router.get(f"{RUN}/access", summary="Who may join", response_model=AccessList)
    async def access() -> Response:
        return document_response(access_of(handlers.service.run))

    @router.put(f"{RUN}/access/{{public_key}}", summary="Let a key's owner join", status_code=204)
    async def admit_key(public_key: PublicKey) -> Response:
        await handlers.submit(stimuli.KeyAdmitted(checked_key(public_key)))
        return Response(status_code=204)

    @router.delete(f"{RUN}/access/{{public_key}}", summary="Keep a key's owner out", status_code=204)
    async def remove_key(public_key: PublicKey) -> Response:
        await handlers.submit(stimuli.KeyRemoved(checked_key(public_key)))
        return Response(status_code=204)

    return router


def rewind_routes(handlers: Handlers) -> APIRouter:
    """Return the routes."""
    router = operator_router(handlers)

    @router.get(f"{RUN}/rewind", summary="The steps to which the run can go back", response_model=RewindChoices)
    async def choices() -> Response:
        return document_response(choices_of(handlers.service.run))

    @router.post(
        f"{RUN}/rewind",
        summary="Go back to a kept checkpoint",
        response_model=RewindChoices,
        openapi_extra=takes(body=RewindRequest),
    )
    async def rewind(request: Request) -> Response:
        wanted = await read_message(request, RewindRequest)
        lineage = secrets.token_hex(LINEAGE_CHARACTERS // 2)
        await handlers.submit(stimuli.RunRewound(wanted.to_step, wanted.skip, lineage))
        return document_response(choices_of(handlers.service.run))

    return router


def change_routes(handlers: Handlers) -> APIRouter:
    """Return the routes."""
    router, reading = operator_router(handlers), open_router(handlers)

    @router.post(
        f"{RUN}/changes",
        summary="Announce settings that change from a step on",
        response_model=ChangeList,
        openapi_extra=takes(body=ChangeRequest),
    )
    async def announce(request: Request) -> Response:
        wanted = await read_message(request, ChangeRequest)
        await handlers.submit(stimuli.ChangeAnnounced(wanted.at_step, wanted.values, wanted.mix))
        return document_response(_changes_of(handlers.service.run))

    @router.delete(f"{RUN}/changes/{{at_step}}", summary="Take an announced change back", status_code=204)
    async def withdraw(at_step: int) -> Response:
        await handlers.submit(stimuli.ChangeWithdrawn(at_step))
        return Response(status_code=204)

    @reading.get(f"{RUN}/changes", summary="The run's changes, past and announced", response_model=ChangeList)
    async def changes() -> Response:
        return document_response(_changes_of(handlers.service.run))

    router.routes += reading.routes
    return router


def _changes_of(run: Run) -> ChangeList:
    return ChangeList(first_free_step(run), announced_changes(run.identity.state_file, run.identity.applied_count))


def check_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which checkers work."""
    checks = f"{RUN}/checks"

    async def checker_of(run_id: str, request: Request) -> str:
        handlers.check_run(run_id)
        found = handlers.checker(bearer_token(request.headers))
        vouch_for(request.scope, f"checker {found}")
        return found

    router = APIRouter(route_class=DescribedRoute, dependencies=[CHECKER, Depends(checker_of)])

    @router.post(
        checks,
        summary="Lease a result to check; long poll",
        response_model=LeasedCheck,
        responses={204: {"description": "Nothing to check within `wait_s`"}},
        openapi_extra=takes(WAIT_S),
    )
    async def lease(checker: Annotated[str, Depends(checker_of)], request: Request) -> Response:
        wait_s = Query(request.scope["query_string"]).seconds("wait_s")
        found = await handlers.arrivals.lease_check(checker, wait_s)
        return Response(status_code=204) if found is None else document_response(found)

    @router.post(f"{checks}/{{lease}}/renewal", summary="Continue a leased check", response_model=RenewedLease)
    async def renew(checker: Annotated[str, Depends(checker_of)], lease: str) -> Response:
        return document_response(await handlers.arrivals.checks.renew(checker, lease))

    @router.post(
        f"{checks}/{{lease}}/verdict",
        summary="The verdict on a leased check",
        status_code=204,
        openapi_extra=takes(body=CheckVerdict),
    )
    async def report(checker: Annotated[str, Depends(checker_of)], lease: str, request: Request) -> Response:
        handlers.arrivals.checks.report(checker, lease, await read_message(request, CheckVerdict))
        return Response(status_code=204)

    @router.delete(f"{checks}/{{lease}}", summary="Give a leased check back", status_code=204)
    async def give_back(checker: Annotated[str, Depends(checker_of)], lease: str) -> Response:
        handlers.arrivals.checks.give_back(checker, lease)
        return Response(status_code=204)

    _add_slices(router, handlers)

    @router.get(
        f"{RUN}/parameters", summary="Names and shapes of the model's parameters", response_model=ParameterNames
    )
    async def parameters() -> Response:
        return document_response(await handlers.arrivals.parameter_names())

    return router


def _add_slices(router: APIRouter, handlers: Handlers) -> None:
    places, slices = f"{RUN}/slices", handlers.intake.slices

    @router.post(
        places,
        summary="Lease a slice of the round's update; long poll",
        response_model=LeasedSlice,
        responses={204: {"description": "No slice to make within `wait_s`"}},
        openapi_extra=takes(WAIT_S, _WORKER),
    )
    async def lease(request: Request) -> Response:
        query = Query(request.scope["query_string"])
        worker = query.text("worker") or ""
        if not _NAME.fullmatch(worker):
            raise Refused(
                Refusal.INVALID_PARAMETER, f"worker={worker[:MAX_SHOWN_CHARS]} is not 32 lowercase hex digits"
            )
        found = await handlers.arrivals.lease_slice(worker, query.seconds("wait_s"))
        return Response(status_code=204) if found is None else document_response(found)

    @router.post(
        f"{places}/{{lease}}/renewal",
        summary="The results that follow in a leased slice; long poll",
        response_model=LeasedSlice,
        openapi_extra=takes(WAIT_S, in_query("added", WHOLE, "Number of results added.", default=0)),
    )
    async def renew(lease: str, request: Request) -> Response:
        query = Query(request.scope["query_string"])
        return document_response(await slices.renew(lease, query.whole("added", 0), query.seconds("wait_s")))

    @router.put(
        f"{places}/{{lease}}",
        summary="Deliver a leased slice",
        status_code=204,
        openapi_extra=takes(body=BYTES, media_type="application/octet-stream"),
    )
    async def deliver(lease: str, request: Request) -> Response:
        await slices.deliver(lease, content_length(request), steady_body_pieces(request))
        return Response(status_code=204)

    @router.delete(f"{places}/{{lease}}", summary="Give a leased slice back", status_code=204)
    async def give_back(lease: str) -> Response:
        slices.give_back(lease)
        return Response(status_code=204)


def replay_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which verifiers work."""
    replays = f"{RUN}/replays"

    async def verifier_of(run_id: str, request: Request) -> str:
        handlers.check_run(run_id)
        found = handlers.verifier(bearer_token(request.headers))
        vouch_for(request.scope, f"verifier {found}")
        return found

    router = APIRouter(route_class=DescribedRoute, dependencies=[VERIFIER, Depends(verifier_of)])

    @router.post(
        replays,
        summary="Lease a result to compute again; long poll",
        response_model=LeasedReplay,
        responses={204: {"description": "Nothing to compute again within `wait_s`"}},
        openapi_extra=takes(WAIT_S),
    )
    async def lease(verifier: Annotated[str, Depends(verifier_of)], request: Request) -> Response:
        wait_s = Query(request.scope["query_string"]).seconds("wait_s")
        found = await handlers.replays.lease(verifier, wait_s)
        return Response(status_code=204) if found is None else document_response(found)

    @router.post(f"{replays}/{{lease}}/renewal", summary="Continue a leased replay", response_model=LeasedReplay)
    async def renew(verifier: Annotated[str, Depends(verifier_of)], lease: str) -> Response:
        return document_response(handlers.replays.renew(verifier, lease))

    @router.delete(f"{replays}/{{lease}}", summary="Give a leased replay back", status_code=204)
    async def give_back(verifier: Annotated[str, Depends(verifier_of)], lease: str) -> Response:
        handlers.replays.give_back(verifier, lease)
        return Response(status_code=204)

    @router.post(f"{RUN}/tickets", summary="A verifier's ticket for data servers", response_model=DataTicket)
    async def ticket(verifier: Annotated[str, Depends(verifier_of)]) -> Response:
        signed = handlers.tokens.data_ticket(VERIFIER_PREFIX + verifier, handlers.service.now_s())
        return document_response(DataTicket(signed, SESSION_LIFETIME_S))

    for place, kind, summary in REPORTS:
        _add_report(router, handlers, verifier_of, (f"{RUN}/{place}", kind, summary))
    return router


def _add_report(
    router: APIRouter,
    handlers: Handlers,
    verifier_of: Callable[..., Awaitable[str]],
    route: tuple[str, type[VerifierReport], str],
) -> None:
    """Add a route by which verifiers report."""
    place, kind, summary = route

    @router.post(place, summary=summary, status_code=204, openapi_extra=takes(body=kind))
    async def report(verifier: Annotated[str, Depends(verifier_of)], request: Request) -> Response:
        await handlers.report_of_verifier(verifier, await read_message(request, kind))
        return Response(status_code=204)
