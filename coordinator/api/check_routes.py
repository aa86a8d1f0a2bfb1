"""Routes of checkers: results to check and slices of updates to make, by lease, and what comes of them."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import CHECKER, RUN, WAIT_S
from epochal.coordinator.handlers import Handlers
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import (
    bearer_token,
    content_length,
    document_response,
    read_message,
    steady_body_pieces,
)
from epochal.runtime.http.openapi import BYTES, WHOLE, DescribedRoute, in_query, takes
from epochal.runtime.http.parameters import MAX_SHOWN_CHARS, Query
from epochal.state.errors import Refused
from epochal.state.messages.blob_messages import CheckVerdict, LeasedCheck, ParameterNames, RenewedLease
from epochal.state.messages.slice_messages import LeasedSlice
from epochal.state.refusals import Refusal

_WORKER = in_query(
    "worker", {"type": "string", "pattern": "^[0-9a-f]{32}$"}, "The process that asks, as it named itself."
)
_NAME = re.compile("[0-9a-f]{32}")


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

    _add_slices(router, handlers)

    @router.get(
        f"{RUN}/parameters", summary="Names and shapes of the model's parameters", response_model=ParameterNames
    )
    async def parameters() -> Response:
        return document_response(await handlers.arrivals.parameter_names())

    return router


def _add_slices(router: APIRouter, handlers: Handlers) -> None:
    places, slices = f"{RUN}/slices", handlers.intake.slices

    @router.post(
        places,
        summary="Lease a slice of the round's update; long poll",
        response_model=LeasedSlice,
        responses={204: {"description": "No slice to make within `wait_s`"}},
        openapi_extra=takes(WAIT_S, _WORKER),
    )
    async def lease(request: Request) -> Response:
        query = Query(request.scope["query_string"])
        worker = query.text("worker") or ""
        if not _NAME.fullmatch(worker):
            raise Refused(
                Refusal.INVALID_PARAMETER, f"worker={worker[:MAX_SHOWN_CHARS]} is not 32 lowercase hex digits"
            )
        found = await handlers.arrivals.lease_slice(worker, query.seconds("wait_s"))
        return Response(status_code=204) if found is None else document_response(found)

    @router.post(
        f"{places}/{{lease}}/renewal",
        summary="The results that follow in a leased slice; long poll",
        response_model=LeasedSlice,
        openapi_extra=takes(WAIT_S, in_query("added", WHOLE, "Number of results added.", default=0)),
    )
    async def renew(lease: str, request: Request) -> Response:
        query = Query(request.scope["query_string"])
        return document_response(await slices.renew(lease, query.whole("added", 0), query.seconds("wait_s")))

    @router.put(
        f"{places}/{{lease}}",
        summary="Deliver a leased slice",
        status_code=204,
        openapi_extra=takes(body=BYTES, media_type="application/octet-stream"),
    )
    async def deliver(lease: str, request: Request) -> Response:
        await slices.deliver(lease, content_length(request), steady_body_pieces(request))
        return Response(status_code=204)

    @router.delete(f"{places}/{{lease}}", summary="Give a leased slice back", status_code=204)
    async def give_back(lease: str) -> Response:
        slices.give_back(lease)
        return Response(status_code=204)
