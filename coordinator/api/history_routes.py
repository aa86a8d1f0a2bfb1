"""Routes of the run's history and of its news, for those whom `[access] dashboard` lets see them."""

from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from epochal.coordinator.api.encoded_documents import takes_gzip
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess, viewer_router
from epochal.coordinator.insight.history_views import DEFAULT_POINTS, MAX_POINTS, EncodedPage, HistoryViews
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.viewers import MIN_ASK_AGAIN_S, EventPlace, Viewers, parse_place
from epochal.coordinator.run.long_polls import Reader
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, document_response, has_gone, json_response
from epochal.runtime.http.openapi import WHOLE, Number, in_header, in_query, takes
from epochal.runtime.http.parameters import Query, parse_whole
from epochal.runtime.http.problem_json import problem_response
from epochal.state.messages.audit_reports import AuditHistory
from epochal.state.messages.history_rows import HistoryPage, Moment, RoundDetail
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.shown.operator_actions import ActionsPage

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = "last-event-id"
ASK_AGAIN_HEADER = "Epochal-Ask-Again"
"""Seconds after which a viewer may ask for the same again: the more viewers there are, the longer."""
_SEEN = in_header("If-None-Match")
_SAME: dict[int | str, dict[str, Any]] = {304: {"description": "The reader has it"}}
CACHED: dict[str, Any] = {"responses": _SAME, "openapi_extra": takes(_SEEN)}
"""What the routes declare whose answer a reader may have already (`sent_page`)."""
_MOST_CLIENTS = in_query("slowest", WHOLE, "Maximum number of a round's clients, the slowest first; all by default.")
_SLOWEST = {**CACHED, "openapi_extra": takes(_MOST_CLIENTS, _SEEN)}
_FROM = in_query("from", WHOLE, "Number of the first round.", default=0)
_TO = in_query("to", WHOLE, "Number of the last one; the last of all by default.")
_POINTS = in_query(
    "points", {**WHOLE, "minimum": 1, "maximum": MAX_POINTS}, "Maximum number of rows.", default=DEFAULT_POINTS
)


def history_routes(access: ViewerAccess, views: HistoryViews, viewers: Viewers, insight: ReadSide) -> APIRouter:
    """Return the routes of the history: rows, one round, the present, its news, operators' actions and audits."""
    router = viewer_router(access)
    _add_rounds(router, access, views)
    _add_news(router, access, views, viewers)
    _add_records(router, insight)
    return router


def _add_rounds(router: APIRouter, access: ViewerAccess, views: HistoryViews) -> None:
    @router.get(
        f"{RUN}/history",
        summary="The figures of rounds that have ended",
        response_model=HistoryPage,
        responses=_SAME,
        openapi_extra=takes(_FROM, _TO, _POINTS, _SEEN),
    )
    async def history(run_id: str, request: Request) -> Response:
        viewer, query = viewer_of(access, run_id, request.scope), Query(request.scope["query_string"])
        first, last = query.whole("from", 0), None if query.text("to") is None else query.whole("to", 0)
        return sent_page(await views.page(viewer, first, last, query.whole("points", DEFAULT_POINTS)), request)

    @router.get(
        f"{RUN}/history/rounds/{{number}}",
        summary="One of the last rounds, with each of its clients",
        response_model=RoundDetail,
        **_SLOWEST,
    )
    async def one_round(number: Number, request: Request) -> Response:
        return sent_page(await views.round(parse_whole("number", number), _slowest(request)), request)

    @router.get(
        f"{RUN}/history/explanation",
        summary="Why the run is not faster: where the time of its last rounds went",
        response_model=SpeedExplanation,
        **CACHED,
    )
    async def explanation(request: Request) -> Response:
        return sent_page(await views.explanation(), request)


def _add_news(router: APIRouter, access: ViewerAccess, views: HistoryViews, viewers: Viewers) -> None:
    @router.get(
        f"{RUN}/history/present",
        summary="The run as it is, or was a moment ago: the same answer for all who ask at about the same time",
        response_model=Moment,
        **_SLOWEST,
    )
    async def present(request: Request) -> Response:
        return sent_page(await views.present(_slowest(request)), request)

    @router.get(
        f"{RUN}/events",
        summary="News of the run without end: `document` (RunDocument), `rounds` (HistoryPage), `now` (RunNow), "
        "`reset`, `dropped` (with a `detail`)",
        status_code=200,
        response_class=EventStream,
        openapi_extra=takes(in_header("Last-Event-ID", "Of the last event received: what was missed is sent first.")),
    )
    async def events(run_id: str, request: Request) -> Response:
        return EventStream(viewer_of(access, run_id, request.scope), viewers)


def _add_records(router: APIRouter, insight: ReadSide) -> None:
    @router.get(f"{RUN}/actions", summary="What the operators did", response_model=ActionsPage)
    async def actions() -> Response:
        return document_response(insight.actions(), "no-cache")

    @router.get(f"{RUN}/audits", summary="The audits that were reported", response_model=AuditHistory)
    async def audits() -> Response:
        return document_response(await insight.audits(), "no-cache")


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


class EventStream(Response):
    """Server-sent events, until the viewer or the coordinator leaves."""

    media_type = EVENT_STREAM

    def __init__(self, viewer: Reader, viewers: Viewers) -> None:
        super().__init__()
        self._viewer = viewer
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
        """Return the last event that the viewer has seen, once it may be sent what follows. Raise `Refused`."""
        if not self._viewer.is_stranger:
            vouch_for(scope, f"viewer {self._viewer.name}")
        last = Headers(scope=scope).get(LAST_EVENT_ID)
        seen = None if not last else parse_place(last)
        held.enter_context(self._viewers.place(self._viewer))
        await self._viewers.ready()
        return seen

    async def _stream(self, seen: EventPlace | None, receive: Receive, send: Send) -> None:
        gone = partial(has_gone, receive)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async with aclosing(self._viewers.frames(seen)) as frames:
            async for frame in frames:
                if gone():
                    return
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


_HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx would gather events
]
