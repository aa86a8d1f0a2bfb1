"""Routes of checkers: work by lease, and its verdicts; and the operator's route that makes their tokens."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.operator_routes import check_operator
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.handlers import Handlers
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, document_response, openapi_answer, openapi_body, read_message
from epochal.runtime.http.parameters import Query
from epochal.state.messages.blob_messages import CheckerToken, CheckVerdict, LeasedCheck, ParameterNames, RenewedLease


def check_routes(handlers: Handlers) -> APIRouter:
    """Return the routes by which checkers work."""
    router = APIRouter()

    def checker(run_id: str, request: Request) -> str:
        handlers.check_run(run_id)
        found = handlers.checker(bearer_token(request.headers))
        vouch_for(request.scope, f"checker {found}")
        return found

    @router.post(
        f"{RUN}/checks",
        summary="Lease a result to check (checker token); long poll",
        responses=openapi_answer(LeasedCheck),
    )
    async def lease(run_id: str, request: Request) -> Response:
        wait_s = Query(request.scope["query_string"]).seconds("wait_s")
        found = await handlers.arrivals.lease_check(checker(run_id, request), wait_s)
        return Response(status_code=204) if found is None else document_response(found)

    @router.post(
        f"{RUN}/checks/{{lease}}/renewal",
        summary="Go on with a leased check (checker token)",
        responses=openapi_answer(RenewedLease),
    )
    async def renew(run_id: str, lease: str, request: Request) -> Response:
        return document_response(await handlers.arrivals.checks.renew(checker(run_id, request), lease))

    @router.post(
        f"{RUN}/checks/{{lease}}/verdict",
        summary="The verdict on a leased check (checker token)",
        status_code=204,
        openapi_extra=openapi_body(CheckVerdict),
    )
    async def report(run_id: str, lease: str, request: Request) -> Response:
        name = checker(run_id, request)
        handlers.arrivals.checks.report(name, lease, await read_message(request, CheckVerdict))
        return Response(status_code=204)

    @router.delete(f"{RUN}/checks/{{lease}}", summary="Give a leased check back (checker token)", status_code=204)
    async def give_back(run_id: str, lease: str, request: Request) -> Response:
        handlers.arrivals.checks.give_back(checker(run_id, request), lease)
        return Response(status_code=204)

    @router.get(
        f"{RUN}/parameters",
        summary="Names and shapes of the model's parameters (checker token)",
        responses=openapi_answer(ParameterNames),
    )
    async def parameters(run_id: str, request: Request) -> Response:
        checker(run_id, request)
        return document_response(await handlers.arrivals.parameter_names())

    @router.post(
        f"{RUN}/tokens/checker",
        summary="A new token for a checker (admin token)",
        responses=openapi_answer(CheckerToken),
    )
    async def checker_token(run_id: str, request: Request) -> Response:
        check_operator(handlers, run_id, request)
        return document_response(handlers.checker_token())

    return router
