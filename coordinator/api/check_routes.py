"""Routes of checkers: work by lease, and its verdicts."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import CHECKER, RUN, WAIT_S
from epochal.coordinator.handlers import Handlers
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, document_response, read_message
from epochal.runtime.http.openapi import DescribedRoute, takes
from epochal.runtime.http.parameters import Query
from epochal.state.messages.blob_messages import CheckVerdict, LeasedCheck, ParameterNames, RenewedLease


def check_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which checkers work."""
    checks = f"{RUN}/checks"

    async def checker_of(run_id: str, request: Request) -> str:
        handlers.check_run(run_id)
        found = handlers.checker(bearer_token(request.headers))
        vouch_for(request.scope, f"checker {found}")
        return found

    router = APIRouter(route_class=DescribedRoute, dependencies=[CHECKER, Depends(checker_of)])

    @router.post(
        checks,
        summary="Lease a result to check; long poll",
        response_model=LeasedCheck,
        responses={204: {"description": "Nothing to check within `wait_s`"}},
        openapi_extra=takes(WAIT_S),
    )
    async def lease(checker: Annotated[str, Depends(checker_of)], request: Request) -> Response:
        wait_s = Query(request.scope["query_string"]).seconds("wait_s")
        found = await handlers.arrivals.lease_check(checker, wait_s)
        return Response(status_code=204) if found is None else document_response(found)

    @router.post(f"{checks}/{{lease}}/renewal", summary="Continue a leased check", response_model=RenewedLease)
    async def renew(checker: Annotated[str, Depends(checker_of)], lease: str) -> Response:
        return document_response(await handlers.arrivals.checks.renew(checker, lease))

    @router.post(
        f"{checks}/{{lease}}/verdict",
        summary="The verdict on a leased check",
        status_code=204,
        openapi_extra=takes(body=CheckVerdict),
    )
    async def report(checker: Annotated[str, Depends(checker_of)], lease: str, request: Request) -> Response:
        handlers.arrivals.checks.report(checker, lease, await read_message(request, CheckVerdict))
        return Response(status_code=204)

    @router.delete(f"{checks}/{{lease}}", summary="Give a leased check back", status_code=204)
    async def give_back(checker: Annotated[str, Depends(checker_of)], lease: str) -> Response:
        handlers.arrivals.checks.give_back(checker, lease)
        return Response(status_code=204)

    @router.get(
        f"{RUN}/parameters", summary="Names and shapes of the model's parameters", response_model=ParameterNames
    )
    async def parameters() -> Response:
        return document_response(await handlers.arrivals.parameter_names())

    return router
