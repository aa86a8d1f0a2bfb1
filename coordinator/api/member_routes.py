"""Routes of the run's members, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.history_routes import sent_page
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess
from epochal.coordinator.insight.member_views import MemberViews
from epochal.runtime.http.bodies import bearer_token, document_response, openapi_answer
from epochal.state.messages.member_rows import MemberDetail, MembersPage


def member_routes(access: ViewerAccess, members: MemberViews) -> APIRouter:
    """Return the routes of the members.

    Args:
        access: says who may see the run.
        members: makes the pages.
    """
    router = APIRouter()

    @router.get(f"{RUN}/members", summary="All members of the run", responses=openapi_answer(MembersPage))
    async def all_members(run_id: str, request: Request) -> Response:
        access.check(run_id, bearer_token(request.headers))
        return sent_page(await members.page(), request)

    @router.get(
        f"{RUN}/members/{{client_id}}",
        summary="One member: its figures, its last rounds, and what was refused of it",
        responses=openapi_answer(MemberDetail),
    )
    async def one_member(run_id: str, client_id: str, request: Request) -> Response:
        access.check(run_id, bearer_token(request.headers))
        return document_response(members.detail(client_id), "no-cache")

    return router
