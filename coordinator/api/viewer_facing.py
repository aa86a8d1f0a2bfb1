"""Routes of the run's history, its news and its members, for those whom `[access] dashboard` lets see them.

The page itself and its files are for everyone who reaches the coordinator: they hold nothing of the run. What the page
shows, it asks the other routes for.
"""

from collections.abc import Iterable
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from epochal.coordinator.api.encoded_documents import takes_gzip
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.auth.admin import OPERATOR
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.history_views import DEFAULT_POINTS, MAX_POINTS, EncodedPage, HistoryViews
from epochal.coordinator.insight.member_views import MemberViews
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.viewers import MIN_ASK_AGAIN_S, EventPlace, Viewers, parse_place
from epochal.coordinator.page.page_files import INDEX, PageFile, page_files
from epochal.coordinator.run.long_polls import Reader, ReaderKind, stranger_at
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token, document_response, has_gone, json_response
from epochal.runtime.http.openapi import WHOLE, DescribedRoute, Number, in_header, in_query, takes
from epochal.runtime.http.parameters import Query, parse_whole
from epochal.runtime.http.problem_json import problem_response
from epochal.state.errors import Refused
from epochal.state.messages.audit_reports import AuditHistory
from epochal.state.messages.history_rows import HistoryPage, Moment, RoundDetail
from epochal.state.messages.member_rows import MemberDetail, MembersPage
from epochal.state.messages.verification_views import VerificationView
from epochal.state.refusals import Refusal
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.shown.join_guide import JoinGuide, JoinRoom, join_guide, room_of
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.wire import Sha256

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
PAGE = "/"
FILES = "/dashboard"
RULES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: nothing inline, nothing from elsewhere, no frame around it, and no text becomes HTML."""
HEADERS = {
    "Content-Security-Policy": RULES,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class ViewerAccess:
    """Decides who may see one coordinator's run.

    Args:
        handlers: of the coordinator.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def check(self, run_id: str, token: str | None) -> None:
        """Raise `Refused` unless the run is served, and `[access] dashboard` lets the owner of the token see it.

        A member that views the page does not count as alive by that: its client may be gone while its page is open.

        Args:
            run_id: in the request's path.
            token: a member's session token or the admin token; None if the request shows none.
        """
        self._handlers.check_run(run_id)
        rule = self._handlers.service.run.state_file.access.dashboard
        if rule == "public" or (token is not None and self._handlers.admin.matches(token)):
            return
        if rule == "members":
            self._handlers.member_of(token)
        else:
            self._handlers.check_admin(token)

    def viewer(self, run_id: str, token: str | None, host: str) -> Reader:
        """Return the viewer: the operator, a member, or a stranger, who may show any other token. Raise as `check`.

        Args:
            run_id: in the request's path.
            token: as in `check`.
            host: from which the request comes.
        """
        self.check(run_id, token)
        if token is not None:
            if self._handlers.admin.matches(token):
                return Reader(ReaderKind.OPERATOR, OPERATOR)
            with suppress(Refused):
                return Reader(ReaderKind.MEMBER, self._handlers.member_of(token))
        return stranger_at(host)


def viewer_router(access: ViewerAccess) -> APIRouter:
    """Return a router for routes of the run that those may read whom `[access] dashboard` lets see it."""

    async def check(run_id: str, request: Request) -> None:
        access.check(run_id, bearer_token(request.headers))

    return APIRouter(route_class=DescribedRoute, dependencies=[Depends(check)])


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


def member_routes(access: ViewerAccess, members: MemberViews) -> APIRouter:
    """Return the routes of the members.

    Args:
        access: says who may see the run.
        members: makes the pages.
    """
    router = viewer_router(access)

    @router.get(f"{RUN}/members", summary="All members of the run", response_model=MembersPage, **CACHED)
    async def all_members(request: Request) -> Response:
        return sent_page(await members.page(), request)

    @router.get(
        f"{RUN}/members/{{client_id}}",
        summary="One member: its figures, its last rounds, and what was refused of it",
        response_model=MemberDetail,
    )
    async def one_member(client_id: str) -> Response:
        return document_response(members.detail(client_id), "no-cache")

    @router.get(f"{RUN}/verification", summary="How members' results are verified", response_model=VerificationView)
    async def verification() -> Response:
        return document_response(members.verification(), "no-cache")

    return router


def join_routes(handlers: Handlers, access: ViewerAccess, version: str, own_certificate: Sha256 | None) -> APIRouter:
    """Return the route of the guide.

    Args:
        handlers: of the coordinator.
        access: says who may see the run.
        version: the program's.
        own_certificate: SHA-256 of the coordinator's, if only those trust it who have it.
    """
    router = viewer_router(access)

    @router.get(f"{RUN}/join", summary="How a machine joins the run", response_model=JoinGuide)
    async def join() -> Response:
        room = await _room(handlers)
        guide = join_guide(handlers.service.run.state_file, version, room, own_certificate)
        return document_response(guide, "no-cache")

    return router


async def _room(handlers: Handlers) -> JoinRoom | None:
    """Return the room that a client needs; None before the first checkpoint."""
    run = handlers.service.run
    if run.models.checkpoint is None:
        return None
    try:
        layout = await handlers.intake.layout()
    except Refused as refusal:
        if refusal.kind is Refusal.NOT_NOW:
            return None
        raise
    base = {} if run.models.spec is None else run.models.spec.base or {}
    base_bytes = sum(file.size_bytes for file in base.values())
    return room_of(run.state_file, layout, run.models.checkpoint.size_bytes, base_bytes)


def dashboard_routes() -> list[Route]:
    """Return the routes of the page."""

    async def page(request: Request) -> Response:
        if not _takes_html(request.headers.getlist("accept")):
            raise Refused(
                Refusal.NOT_FOUND, "/ is a page for browsers (Accept: text/html); programs read /openapi.json"
            )
        return _sent(page_files()[INDEX], request, "Accept, Accept-Encoding")

    async def file(request: Request) -> Response:
        name: str = request.path_params["file"]
        found = page_files().get(name)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, "the page has no such file")
        return _sent(found, request, "Accept-Encoding")

    return [Route(PAGE, page), Route(f"{FILES}/{{file:path}}", file)]


def _takes_html(accepted: Iterable[str]) -> bool:
    """Return whether the sender of a request reads HTML (RFC 9110, section 12.5.1), or does not say."""
    offers = [offer for line in accepted for offer in line.split(",") if offer.strip()]
    for offer in offers:
        kind, _, weight = offer.partition(";")
        if kind.strip().lower() in ("text/html", "text/*", "*/*"):
            return weight.replace(" ", "").rstrip("0.") != "q="
    return not offers


def _sent(found: PageFile, request: Request, vary: str) -> Response:
    headers = {**HEADERS, "ETag": found.etag, "Vary": vary}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if not takes_gzip(request.headers):
        return Response(found.plain, headers=headers, media_type=found.media_type)
    headers["Content-Encoding"] = "gzip"
    return Response(found.compressed, headers=headers, media_type=found.media_type)
