"""The run document by long poll: the one route that thousands of clients wait on.

A bare ASGI endpoint: every waiting client is sent the same bytes, which were serialised once, without a model or a
dependency in between.
"""

from functools import partial

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from epochal.coordinator.api.request_parts import RUN, STALE_HEADER, reader_of
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.run.long_polls import LongPolls
from epochal.coordinator.run.publication import Published
from epochal.runtime.http.bodies import has_gone
from epochal.runtime.http.parameters import Query
from epochal.runtime.http.problem_json import problem_response

BEFORE_THE_FIRST = -1
"""The version that a reader names who has seen no document."""


class RunDocumentEndpoint:
    """`GET /v1/runs/{run_id}?after=V&lineage=L&wait_s=W`."""

    path = RUN

    def __init__(self, handlers: Handlers, polls: LongPolls) -> None:
        self._handlers = handlers
        self._polls = polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            published, seen = await self._published(scope, receive)
        except Exception as error:
            await problem_response(error)(scope, _no_body, send)  # which logs what is no refusal
            return
        if published is None or published.etag == seen:
            etag = self._handlers.service.published.etag if published is None else published.etag
            unchanged = {"ETag": etag} | ({STALE_HEADER: "true"} if self._may_be_stale() else {})
            await Response(status_code=304, headers=unchanged)(scope, _no_body, send)
            return
        headers = _headers(published)
        if self._may_be_stale():
            headers.append((STALE_HEADER.encode(), b"true"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": published.body})

    def _may_be_stale(self) -> bool:
        """Return whether other coordinators may have kept what this one cannot read now."""
        service = self._handlers.service
        return service.health.problem is not None and not service.replicas.is_alone

    async def _published(self, scope: Scope, receive: Receive) -> tuple[Published | None, str | None]:
        handlers = self._handlers
        handlers.check_run(scope["path_params"]["run_id"])
        reader = reader_of(handlers, scope)
        query = Query(scope["query_string"])
        after, lineage = query.whole("after", BEFORE_THE_FIRST, BEFORE_THE_FIRST), query.text("lineage")
        wait_s = query.seconds("wait_s")
        if reader.client_id is not None:
            await handlers.service.older_copy.asked(reader.client_id, after, lineage)
        async with self._polls.place(reader, wait_s):
            with handlers.service.waiting(reader.client_id, partial(has_gone, receive)):
                published = await handlers.wait_published(after, lineage, wait_s, is_stranger=reader.is_stranger)
        if published is None:
            handlers.check_store(reader.client_id)
        return published, Headers(scope=scope).get("if-none-match")


def _headers(published: Published) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(published.body)),
        (b"cache-control", b"no-cache"),
        (b"etag", published.etag.encode()),
    ]


async def _no_body() -> dict[str, str]:
    return {"type": "http.disconnect"}
