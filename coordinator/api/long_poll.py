"""The run document by long poll: the one route that thousands of clients wait on.

A bare ASGI endpoint: every waiting client is sent the same bytes, which were serialised once, without a model or a
dependency in between.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.api.requests import RUN
from coordinator.handlers import Handlers
from coordinator.publication import Published
from runtime.connections import vouch_for
from runtime.http_bodies import bearer_token, has_gone
from runtime.http_parameters import Query
from runtime.problem_json import problem_response
from state.errors import EpochalError, Refused
from state.refusals import Refusal
from state.wire import ClientId

BEFORE_THE_FIRST = -1
"""The version that a reader names who has seen no document."""
MAX_LONG_POLLS = 20_000
"""Maximum number of requests that wait for news."""
MAX_ANONYMOUS_LONG_POLLS = 2_000
"""Maximum number of them without a session token: strangers must not take the members' places."""
MAX_LONG_POLLS_PER_CLIENT = 16
"""A client waits for the document and for results; the rest is for connections that broke unnoticed."""


class LongPolls:
    """Counts the waiting requests, and bounds them."""

    def __init__(self) -> None:
        self._waiting: Counter[ClientId | None] = Counter()
        self.count = 0

    @contextmanager
    def place(self, client_id: ClientId | None) -> Iterator[None]:
        """Hold a place for a waiting request of a member or, if None, of an anonymous reader.

        Raises:
            Refused: `overloaded`.
        """
        most = MAX_ANONYMOUS_LONG_POLLS if client_id is None else MAX_LONG_POLLS_PER_CLIENT
        if self.count >= MAX_LONG_POLLS or self._waiting[client_id] >= most:
            raise Refused(Refusal.OVERLOADED, "too many requests are waiting; try again in a moment")
        self.count += 1
        self._waiting[client_id] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._waiting[client_id] -= 1
            if not self._waiting[client_id]:
                del self._waiting[client_id]


class RunDocumentEndpoint:
    """`GET /v1/runs/{run_id}?after=V&lineage=L&wait_s=W`."""

    path = RUN

    def __init__(self, handlers: Handlers, polls: LongPolls) -> None:
        self._handlers = handlers
        self._polls = polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            published, seen = await self._published(scope, receive)
        except EpochalError as error:
            await problem_response(error)(scope, _no_body, send)
            return
        if published is None or published.etag == seen:
            etag = self._handlers.service.published.etag if published is None else published.etag
            await Response(status_code=304, headers={"ETag": etag})(scope, _no_body, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _headers(published)})
        await send({"type": "http.response.body", "body": published.body})

    async def _published(self, scope: Scope, receive: Receive) -> tuple[Published | None, str | None]:
        handlers = self._handlers
        handlers.check_run(scope["path_params"]["run_id"])
        headers = Headers(scope=scope)
        token = bearer_token(headers)
        client_id = None if token is None else handlers.authenticate(token)
        if client_id is not None:
            vouch_for(scope, client_id)
        query = Query(scope["query_string"])
        after, lineage = query.whole("after", BEFORE_THE_FIRST, BEFORE_THE_FIRST), query.text("lineage")
        wait_s = query.seconds("wait_s")
        with self._polls.place(client_id), handlers.service.waiting(client_id, partial(has_gone, receive)):
            published = await handlers.wait_published(after, lineage, wait_s)
        if published is None:
            handlers.check_store(client_id)
        return published, headers.get("if-none-match")


def _headers(published: Published) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(published.body)),
        (b"cache-control", b"no-cache"),
        (b"etag", published.etag.encode()),
    ]


async def _no_body() -> dict[str, str]:
    return {"type": "http.disconnect"}
