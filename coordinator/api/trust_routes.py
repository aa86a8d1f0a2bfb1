"""Routes of what was checked and done, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess, viewer_router
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.trust_views import TrustViews
from epochal.runtime.http.bodies import document_response
from epochal.state.messages.audit_reports import AuditHistory
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.shown.trust import TrustView


def trust_routes(access: ViewerAccess, trust: TrustViews, insight: ReadSide) -> APIRouter:
    """Return the routes that show it.

    Args:
        access: says who may see the run.
        trust: makes the answers.
        insight: knows the audits.
    """
    router = viewer_router(access)

    @router.get(f"{RUN}/trust", summary="What was checked, and what was refused", response_model=TrustView)
    async def show_trust() -> Response:
        return document_response(trust.trust(), "no-cache")

    @router.get(f"{RUN}/actions", summary="What the operators did", response_model=ActionsPage)
    async def actions() -> Response:
        return document_response(trust.actions(), "no-cache")

    @router.get(f"{RUN}/audits", summary="The audits that were reported", response_model=AuditHistory)
    async def audits() -> Response:
        return document_response(await insight.audits(), "no-cache")

    return router
