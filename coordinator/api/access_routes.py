"""Routes for the operator on who may join and when the run ends (admin token)."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN, PublicKey, operator_router, sha256_of
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine import stimuli
from epochal.coordinator.operator_requests import access_of, checked_key, invitations_of, invite
from epochal.runtime.http.bodies import document_response, read_message
from epochal.runtime.http.openapi import takes
from epochal.state.messages.access_commands import (
    AccessList,
    FinishSetting,
    InvitationList,
    InvitationRequest,
    MadeInvitation,
)


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
