"""Routes of verifiers: results to compute again, by lease, and how far apart the two are."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN, VERIFIER, WAIT_S
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S
from epochal.coordinator.handlers import Handlers
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, document_response, read_message
from epochal.runtime.http.openapi import DescribedRoute, takes
from epochal.runtime.http.parameters import Query
from epochal.state.messages.replay_messages import (
    CalibrationReport,
    DataTicket,
    LeasedReplay,
    ReplayFailure,
    ReplayReport,
    ScoreReport,
)
from epochal.state.messages.requests import VERIFIER_PREFIX

VerifierReport: TypeAlias = ReplayReport | ScoreReport | ReplayFailure | CalibrationReport
REPORTS: tuple[tuple[str, type[VerifierReport], str], ...] = (
    ("replays/reports", ReplayReport, "How far a result is from its replay"),
    ("replays/scores", ScoreReport, "What a result is worth, where results are not computed again"),
    ("replays/failures", ReplayFailure, "Why a result cannot be computed again"),
    ("calibrations", CalibrationReport, "How far apart honest repetitions of the same work are"),
)
"""What verifiers report: where, its kind, and what that is."""


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
