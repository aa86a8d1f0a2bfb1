"""Routes of the run's members, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.history import sent_page
from coordinator.api.requests import RUN
from coordinator.history_views import HistoryViews
from coordinator.member_views import MemberViews
from runtime.http_bodies import bearer_token, document_response, openapi_answer
from state.members import MemberDetail, MembersPage


def member_routes(views: HistoryViews, members: MemberViews) -> APIRouter:
    """Return the routes of the members.

    Args:
        views: know who may see the run.
        members: makes the pages.
    """
    router = APIRouter()

    @router.get(f"{RUN}/members", summary="All members of the run", responses=openapi_answer(MembersPage))
    async def all_members(run_id: str, request: Request) -> Response:
        views.check(run_id, bearer_token(request.headers))
        return sent_page(await members.page(), request)

    @router.get(
        f"{RUN}/members/{{client_id}}",
        summary="One member: its figures, its last rounds, and what was refused of it",
        responses=openapi_answer(MemberDetail),
    )
    async def one_member(run_id: str, client_id: str, request: Request) -> Response:
        views.check(run_id, bearer_token(request.headers))
        return document_response(members.detail(client_id), "no-cache")

    return router
