"""Routes of the run's history and of its news, for those whom `[access] dashboard` lets see them."""

from contextlib import ExitStack, aclosing
from functools import partial

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from epochal.coordinator.api.encoded_documents import takes_gzip
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess
from epochal.coordinator.insight.history_views import DEFAULT_POINTS, EncodedPage, HistoryViews
from epochal.coordinator.insight.viewers import MIN_ASK_AGAIN_S, EventPlace, Viewers, parse_place
from epochal.coordinator.run.long_polls import Reader
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, has_gone, json_response, openapi_answer
from epochal.runtime.http.parameters import Query, parse_whole
from epochal.runtime.http.problem_json import problem_response
from epochal.state.messages.history_rows import HistoryPage, Moment, RoundDetail
from epochal.state.shown.explanation import SpeedExplanation

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = "last-event-id"
ASK_AGAIN_HEADER = "Epochal-Ask-Again"
"""Seconds after which a viewer may ask for the same again: the more viewers there are, the longer."""


def history_routes(access: ViewerAccess, views: HistoryViews) -> APIRouter:
    """Return the routes of the history: rows, one round, and the run as it was."""
    router = APIRouter()

    def check(run_id: str, request: Request) -> None:
        access.check(run_id, bearer_token(request.headers))

    @router.get(
        f"{RUN}/history", summary="The figures of rounds that have ended", responses=openapi_answer(HistoryPage)
    )
    async def history(run_id: str, request: Request) -> Response:
        viewer, query = viewer_of(access, run_id, request.scope), Query(request.scope["query_string"])
        first, last = query.whole("from", 0), None if query.text("to") is None else query.whole("to", 0)
        return sent_page(await views.page(viewer, first, last, query.whole("points", DEFAULT_POINTS)), request)

    @router.get(
        f"{RUN}/history/rounds/{{number}}",
        summary="One of the last rounds, with each of its clients",
        responses=openapi_answer(RoundDetail),
    )
    async def one_round(run_id: str, number: str, request: Request) -> Response:
        check(run_id, request)
        return sent_page(await views.round(parse_whole("number", number), _slowest(request)), request)

    @router.get(
        f"{RUN}/history/explanation",
        summary="Why the run is not faster: where the time of its last rounds went",
        responses=openapi_answer(SpeedExplanation),
    )
    async def explanation(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return sent_page(await views.explanation(), request)

    @router.get(
        f"{RUN}/history/present",
        summary="The run as it is, or was a moment ago: the same answer for all who ask at about the same time",
        responses=openapi_answer(Moment),
    )
    async def present(run_id: str, request: Request) -> Response:
        check(run_id, request)
        return sent_page(await views.present(_slowest(request)), request)

    @router.get(
        f"{RUN}/history/versions/{{version}}",
        summary="The run as it was at a version of its document",
        responses=openapi_answer(Moment),
    )
    async def moment(run_id: str, version: str, request: Request) -> Response:
        viewer = viewer_of(access, run_id, request.scope)
        return sent_page(await views.moment(viewer, parse_whole("version", version), _slowest(request)), request)

    return router


def viewer_of(access: ViewerAccess, run_id: str, scope: Scope) -> Reader:
    """Return who asks for a part of the history. Raise `Refused` unless `[access] dashboard` lets it."""
    host, _ = scope.get("client") or ("", 0)
    return access.viewer(run_id, bearer_token(Headers(scope=scope)), host)


def _slowest(request: Request) -> int | None:
    """Return how many clients of a round the sender of a request wants at most; None for all."""
    query = Query(request.scope["query_string"])
    return None if query.text("slowest") is None else query.whole("slowest", 0)


def sent_page(page: EncodedPage, request: Request) -> Response:
    """Return the answer with a page, compressed if its reader takes that; 304 if the reader has it."""
    headers = {"ETag": page.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding, Authorization"}
    viewers: Viewers = request.app.state.viewers
    if viewers.ask_again_s > MIN_ASK_AGAIN_S:
        headers[ASK_AGAIN_HEADER] = str(viewers.ask_again_s)
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    is_compressed = page.compressed is not None and takes_gzip(request.headers)
    response = json_response(page.compressed or page.plain if is_compressed else page.plain, "no-cache")
    response.headers.update(headers | ({"Content-Encoding": "gzip"} if is_compressed else {}))
    return response


class EventsEndpoint:
    """`GET /v1/runs/{run_id}/events`: server-sent events, until the viewer or the coordinator leaves."""

    path = f"{RUN}/events"

    def __init__(self, access: ViewerAccess, viewers: Viewers) -> None:
        self._access = access
        self._viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            try:
                seen = await self._admitted(scope, held)
            except Exception as error:
                await problem_response(error)(scope, receive, send)  # which logs what is no refusal
                return
            await self._stream(seen, receive, send)

    async def _admitted(self, scope: Scope, held: ExitStack) -> EventPlace | None:
        """Return the last event that the viewer has seen, once it may be told what follows. Raise `Refused`."""
        headers = Headers(scope=scope)
        viewer = viewer_of(self._access, scope["path_params"]["run_id"], scope)
        if not viewer.is_stranger:
            vouch_for(scope, f"viewer {viewer.name}")
        last = headers.get(LAST_EVENT_ID)
        seen = None if not last else parse_place(last)
        held.enter_context(self._viewers.place(viewer))
        await self._viewers.ready()
        return seen

    async def _stream(self, seen: EventPlace | None, receive: Receive, send: Send) -> None:
        gone = partial(has_gone, receive)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async with aclosing(self._viewers.frames(seen)) as frames:
            async for frame in frames:
                if gone():
                    return
                self._viewers.sent_bytes += len(frame)
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


_HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx would gather events
]
