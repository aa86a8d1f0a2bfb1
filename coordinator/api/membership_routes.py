"""Routes by which clients join, stay, report and leave."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import MEMBER, RUN, caller
from epochal.coordinator.auth.join_hosts import JoinHosts
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.stimuli import ClientWithdrew
from epochal.runtime.connections.per_address import sender_of
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import document_response, read_message, read_short_body
from epochal.runtime.http.openapi import BYTES, DescribedRoute, takes
from epochal.state.messages import requests as messages
from epochal.state.messages.deliveries import MAX_DELIVERY_BYTES, MEDIA_TYPE, parse_delivery
from epochal.state.messages.receipts import Receipt, ReceiptRequest
from epochal.state.messages.requests import Challenge, ChallengeRequest, JoinRequest, Session, Standing

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
