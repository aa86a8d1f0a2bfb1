"""Routes for the operator on who may join and when the run ends (admin token)."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.operator_routes import check_operator
from epochal.coordinator.api.request_parts import RUN, sha256_of
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.operator_requests import OperatorRequests
from epochal.runtime.http.bodies import document_response, openapi_answer, openapi_body, read_message
from epochal.state.messages.access_commands import (
    AccessList,
    FinishSetting,
    InvitationList,
    InvitationRequest,
    MadeInvitation,
)


def access_routes(handlers: Handlers, requests: OperatorRequests) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    def check(run_id: str, request: Request) -> None:
        check_operator(handlers, run_id, request)

    @router.put(
        f"{RUN}/finish",
        summary="End the run after a step, or take that back (admin token)",
        status_code=204,
        openapi_extra=openapi_body(FinishSetting),
    )
    async def finish(run_id: str, request: Request) -> Response:
        check(run_id, request)
        await requests.finish((await read_message(request, FinishSetting)).after_step)
        return Response(status_code=204)

    @router.post(
        f"{RUN}/invitations",
        summary="Invite clients; the answer has the code (admin token)",
        openapi_extra=openapi_body(InvitationRequest),
        responses=openapi_answer(MadeInvitation),
    )
    async def invite(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return document_response(await requests.invite(await read_message(request, InvitationRequest)))

    @router.get(f"{RUN}/invitations", summary="Invitations (admin token)", responses=openapi_answer(InvitationList))
    async def invitations(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return document_response(requests.invitations())

    @router.delete(f"{RUN}/invitations/{{sha256}}", summary="Revoke an invitation (admin token)", status_code=204)
    async def revoke(run_id: str, sha256: str, request: Request) -> Response:
        check(run_id, request)
        await requests.revoke(sha256_of(sha256))
        return Response(status_code=204)

    @router.get(f"{RUN}/access", summary="Who may join (admin token)", responses=openapi_answer(AccessList))
    async def access(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return document_response(requests.access())

    @router.put(f"{RUN}/access/{{public_key}}", summary="Let a key's owner join (admin token)", status_code=204)
    async def admit_key(run_id: str, public_key: str, request: Request) -> Response:
        check(run_id, request)
        await requests.admit_key(public_key)
        return Response(status_code=204)

    @router.delete(f"{RUN}/access/{{public_key}}", summary="Keep a key's owner out (admin token)", status_code=204)
    async def remove_key(run_id: str, public_key: str, request: Request) -> Response:
        check(run_id, request)
        await requests.remove_key(public_key)
        return Response(status_code=204)

    return router
