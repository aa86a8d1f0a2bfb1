"""Routes of the run's members, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.history_routes import CACHED, sent_page
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess, viewer_router
from epochal.coordinator.insight.member_views import MemberViews
from epochal.runtime.http.bodies import document_response
from epochal.state.messages.member_rows import MemberDetail, MembersPage
from epochal.state.messages.verification_views import VerificationView


def member_routes(access: ViewerAccess, members: MemberViews) -> APIRouter:
    """Return the routes of the members.

    Args:
        access: says who may see the run.
        members: makes the pages.
    """
    router = viewer_router(access)

    @router.get(f"{RUN}/members", summary="All members of the run", response_model=MembersPage, **CACHED)
    async def all_members(request: Request) -> Response:
        return sent_page(await members.page(), request)

    @router.get(
        f"{RUN}/members/{{client_id}}",
        summary="One member: its figures, its last rounds, and what was refused of it",
        response_model=MemberDetail,
    )
    async def one_member(client_id: str) -> Response:
        return document_response(members.detail(client_id), "no-cache")

    @router.get(f"{RUN}/verification", summary="How members' results are verified", response_model=VerificationView)
    async def verification() -> Response:
        return document_response(members.verification(), "no-cache")

    return router
