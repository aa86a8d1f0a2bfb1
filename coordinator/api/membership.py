"""Routes by which clients join, stay and leave."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.requests import RUN, caller
from coordinator.handlers import Handlers
from runtime.http_bodies import document_response, openapi_answer, openapi_body, read_message
from state.messages import Challenge, ChallengeRequest, JoinRequest, Session, Standing


def membership_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which clients join, stay and leave."""
    router = APIRouter()

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
        return document_response(handlers.standing(caller(handlers, request)))

    @router.delete(f"{clients}/me", summary="Withdraw", status_code=204)
    async def withdraw(run_id: str, request: Request) -> Response:
        del run_id
        await handlers.withdraw(caller(handlers, request))
        return Response(status_code=204)

    @router.post(f"{clients}/me/token", summary="Renew the token and the ticket", responses=openapi_answer(Session))
    async def renew(run_id: str, request: Request) -> Response:
        del run_id
        return document_response(handlers.renew(caller(handlers, request)))

    return router
