"""Routes of what was checked and done, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.operator_routes import check_operator
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.trust_views import TrustViews
from epochal.coordinator.operator_requests import OperatorRequests
from epochal.runtime.http.bodies import bearer_token, document_response, openapi_answer, openapi_body, read_message
from epochal.state.messages.audit_reports import AuditHistory, AuditRecord
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.shown.trust import TrustView


def trust_routes(handlers: Handlers, access: ViewerAccess, trust: TrustViews, requests: OperatorRequests) -> APIRouter:
    """Return the routes.

    Args:
        handlers: check the admin token.
        access: says who may see the run.
        trust: makes the answers.
        requests: keep audits.
    """
    router = APIRouter()

    @router.get(f"{RUN}/trust", summary="What was checked, and what was refused", responses=openapi_answer(TrustView))
    async def show_trust(run_id: str, request: Request) -> Response:
        access.check(run_id, bearer_token(request.headers))
        return document_response(trust.trust(), "no-cache")

    @router.get(f"{RUN}/actions", summary="What the operators did", responses=openapi_answer(ActionsPage))
    async def actions(run_id: str, request: Request) -> Response:
        access.check(run_id, bearer_token(request.headers))
        return document_response(trust.actions(), "no-cache")

    @router.get(f"{RUN}/audits", summary="The audits that were reported", responses=openapi_answer(AuditHistory))
    async def audits(run_id: str, request: Request) -> Response:
        access.check(run_id, bearer_token(request.headers))
        return document_response(await requests.audits(), "no-cache")

    @router.post(
        f"{RUN}/audits",
        summary="Record what an audit found (admin token)",
        status_code=204,
        openapi_extra=openapi_body(AuditRecord),
    )
    async def record_audit(run_id: str, request: Request) -> Response:
        check_operator(handlers, run_id, request)
        await requests.record_audit(await read_message(request, AuditRecord))
        return Response(status_code=204)

    return router
