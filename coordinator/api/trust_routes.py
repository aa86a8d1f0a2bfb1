"""Routes of what was checked and done, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN, operator_router
from epochal.coordinator.api.viewer_access import ViewerAccess, viewer_router
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.trust_views import TrustViews
from epochal.coordinator.operator_requests import OperatorRequests
from epochal.runtime.http.bodies import document_response, read_message
from epochal.runtime.http.openapi import takes
from epochal.state.messages.audit_reports import AuditHistory, AuditRecord
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.shown.trust import TrustView


def trust_routes(access: ViewerAccess, trust: TrustViews, requests: OperatorRequests) -> APIRouter:
    """Return the routes that show it.

    Args:
        access: says who may see the run.
        trust: makes the answers.
        requests: keep audits.
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
        return document_response(await requests.audits(), "no-cache")

    return router


def audit_routes(handlers: Handlers, requests: OperatorRequests) -> APIRouter:
    """Return the route by which an operator reports an audit."""
    router = operator_router(handlers)

    @router.post(
        f"{RUN}/audits",
        summary="Record what an audit found",
        status_code=204,
        openapi_extra=takes(body=AuditRecord),
    )
    async def record_audit(request: Request) -> Response:
        await requests.record_audit(await read_message(request, AuditRecord))
        return Response(status_code=204)

    return router
