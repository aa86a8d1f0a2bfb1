"""Routes of the run at a past version, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.history_routes import CACHED, sent_page, viewer_of
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess
from epochal.coordinator.insight.version_views import PastViews
from epochal.runtime.http.openapi import Number
from epochal.runtime.http.parameters import parse_whole
from epochal.state.messages.member_rows import MembersPage
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.shown.trust import TrustView

VERSION = f"{RUN}/history/versions/{{version}}"


def past_routes(access: ViewerAccess, past: PastViews) -> APIRouter:
    """Return the routes of a past version.

    Args:
        access: says who may see the run.
        past: makes the pages.
    """
    router = APIRouter()

    @router.get(f"{VERSION}/members", summary="The members at a version", response_model=MembersPage, **CACHED)
    async def members(run_id: str, version: Number, request: Request) -> Response:
        viewer = viewer_of(access, run_id, request.scope)
        return sent_page(await past.members(viewer, parse_whole("version", version)), request)

    @router.get(
        f"{VERSION}/trust", summary="What was checked and refused by a version", response_model=TrustView, **CACHED
    )
    async def trust(run_id: str, version: Number, request: Request) -> Response:
        viewer = viewer_of(access, run_id, request.scope)
        return sent_page(await past.trust(viewer, parse_whole("version", version)), request)

    @router.get(
        f"{VERSION}/explanation",
        summary="Why the run was not faster at a version: where the time of its last rounds went",
        response_model=SpeedExplanation,
        **CACHED,
    )
    async def explanation(run_id: str, version: Number, request: Request) -> Response:
        viewer = viewer_of(access, run_id, request.scope)
        return sent_page(await past.explanation(viewer, parse_whole("version", version)), request)

    return router
