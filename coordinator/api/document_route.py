"""The run document by long poll: the one route that thousands of clients wait on.

Every waiting client is sent the same bytes, which were serialised once.
"""

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN, STALE_HEADER, WAIT_S, reader_of
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.run.long_polls import LongPolls
from epochal.runtime.connections.shedding import gone_of
from epochal.runtime.http.bodies import has_gone
from epochal.runtime.http.openapi import TEXT, WHOLE, DescribedRoute, in_header, in_query, takes
from epochal.runtime.http.parameters import Query
from epochal.state.documents import OWN_OUTCOME_HEADER, RunDocument

BEFORE_THE_FIRST = -1
"""The version that a reader names who has seen no document."""
_AFTER = in_query(
    "after", {**WHOLE, "minimum": BEFORE_THE_FIRST}, "The version that the reader has.", default=BEFORE_THE_FIRST
)


def document_routes(handlers: Handlers, polls: LongPolls) -> APIRouter:
    """Return the route: `GET /v1/runs/{run_id}?after=V&lineage=L&wait_s=W`."""
    router, service = APIRouter(route_class=DescribedRoute), handlers.service

    @router.get(
        RUN,
        summary="The run document, as soon as it is newer than `after`; long poll",
        response_model=RunDocument,
        responses={304: {"description": "Nothing newer within `wait_s`"}},
        openapi_extra=takes(_AFTER, in_query("lineage", TEXT), WAIT_S, in_header("If-None-Match")),
    )
    async def run_document(run_id: str, request: Request) -> Response:
        handlers.check_run(run_id)
        reader = reader_of(handlers, request.scope)
        query = Query(request.scope["query_string"])
        after, lineage = query.whole("after", BEFORE_THE_FIRST, BEFORE_THE_FIRST), query.text("lineage")
        wait_s = query.seconds("wait_s")
        if reader.client_id is not None:
            await service.older_copy.asked(reader.client_id, after, lineage)
        async with polls.place(reader, wait_s):
            with service.waiting(reader.client_id, gone_of(request.scope, partial(has_gone, request.receive))):
                published = await handlers.wait_published(after, lineage, wait_s, is_stranger=reader.is_stranger)
        if published is None:
            handlers.check_store(reader.client_id)
        marks = {STALE_HEADER: "true"} if _may_be_stale(handlers) else {}
        if published is None or published.etag == request.headers.get("if-none-match"):
            etag = service.published.etag if published is None else published.etag
            return Response(status_code=304, headers={"ETag": etag, **marks})
        headers = {"Cache-Control": "no-cache", "ETag": published.etag, **marks}
        if reader.client_id is not None:
            own = service.readers.own_outcome_with(published.document, reader.client_id)
            if own is not None:
                headers[OWN_OUTCOME_HEADER] = own.decode("ascii")
        return Response(published.body, headers=headers, media_type="application/json")

    return router


def _may_be_stale(handlers: Handlers) -> bool:
    """Return whether other coordinators may have kept what this one cannot read now."""
    service = handlers.service
    return service.health.problem is not None and not service.replicas.is_alone
