"""The run document by long poll: the one route that thousands of clients wait on.

A bare ASGI endpoint. What wakes a client sends bytes that were serialised once for all; no model, no dependency and no
middleware of ours lies in between.
"""

from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.api.limits import LongPolls
from coordinator.api.requests import RUN
from coordinator.handlers import Handlers
from coordinator.publication import Published
from runtime.http_bodies import bearer_token, parse_seconds, parse_whole
from runtime.problem_json import problem_response
from state.errors import EpochalError


class RunDocumentEndpoint:
    """`GET /v1/runs/{run_id}?after=V&lineage=L&wait_s=W`."""

    path = RUN

    def __init__(self, handlers: Handlers, polls: LongPolls) -> None:
        self._handlers = handlers
        self._polls = polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        try:
            published, seen = await self._published(scope)
        except EpochalError as error:
            await problem_response(error)(scope, _no_body, send)
            return
        if published is None or published.etag == seen:
            etag = self._handlers.service.published.etag if published is None else published.etag
            await Response(status_code=304, headers={"ETag": etag})(scope, _no_body, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _headers(published)})
        await send({"type": "http.response.body", "body": published.body})

    async def _published(self, scope: Scope) -> tuple[Published | None, str | None]:
        handlers = self._handlers
        handlers.check_run(scope["path_params"]["run_id"])
        headers = Headers(scope=scope)
        token = bearer_token(headers)
        client_id = None if token is None else handlers.authenticate(token)
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        after = parse_whole("after", query.get("after", "-1"))
        wait_s = parse_seconds("wait_s", query.get("wait_s", "0"))
        with self._polls.place(client_id):
            published = await handlers.wait_published(after, query.get("lineage"), wait_s)
        if client_id is not None:
            handlers.service.heard(client_id)
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
