"""Answers that are not older than their requests, where several coordinators serve one run.

A client's requests reach another coordinator each time, and what one has kept the others learn a moment later. So each
request first waits until this one knows all that was kept before. Polls of the run document are not among them: they
wait for what is newer anyway. (They are marked, too, while the store is known to be out of reach: `long_poll`.)

Where the store cannot be asked, the last known answer is sent, marked `Epochal-Stale`; but no answer says that
something does not exist, or is not allowed, and nothing is accepted: such requests are refused with `store-failed`.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.coordinator.api.request_parts import STALE_HEADER
from epochal.coordinator.handlers import Handlers
from epochal.runtime.connections.whole_answers import AT_ONCE_IN_SCOPE
from epochal.runtime.http.bodies import bearer_token
from epochal.runtime.http.parameters import Query
from epochal.runtime.http.problem_json import problem_response
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal

READING_METHODS = ("GET", "HEAD")
UNCERTAIN_STATUSES = (401, 403, 404, 409, 410)
"""Statuses that a coordinator that knew the present run might not give."""


class FreshView:
    """ASGI middleware that lets each request wait until the coordinator knows what was kept before it."""

    def __init__(self, app: ASGIApp, handlers: Handlers) -> None:
        self._app = app
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._handlers.service
        if scope["type"] != "http" or service.replicas.is_alone or not self._depends_on_run(scope):
            await self._app(scope, receive, send)
            return
        try:
            await service.replicas.fresh()
        except StoreFailed as failure:
            refusal = Refused(Refusal.STORE_FAILED, f"the coordinator cannot ask its store now: {failure.message}")
            if scope["method"] in READING_METHODS:
                scope.pop(AT_ONCE_IN_SCOPE, None)
                await self._app(scope, receive, _StaleAnswer(refusal, scope, send))
            else:
                await problem_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _depends_on_run(self, scope: Scope) -> bool:
        """Return whether the answer depends on what other coordinators have kept just now."""
        path: str = scope["path"]
        if not path.startswith("/v1/"):
            return False
        document = self._handlers.service.published.document
        if scope["method"] not in READING_METHODS or path != f"/v1/runs/{document.run_id}":
            return True
        lineage = Query(scope["query_string"]).text("lineage")
        return lineage not in (None, document.lineage) or not self._handlers.knows(bearer_token(Headers(scope=scope)))


class _StaleAnswer:
    """Sends an answer as stale, or a refusal in its place if a coordinator that knew more might answer otherwise."""

    def __init__(self, refusal: Refused, scope: Scope, send: Send) -> None:
        self._refusal = refusal
        self._scope = scope
        self._send = send
        self._is_replaced = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] in UNCERTAIN_STATUSES:
                self._is_replaced = True
                await problem_response(self._refusal)(self._scope, _no_body, self._send)
                return
            MutableHeaders(scope=message)[STALE_HEADER] = "true"
        if not self._is_replaced:
            await self._send(message)


async def _no_body() -> Message:
    return {"type": "http.disconnect"}
