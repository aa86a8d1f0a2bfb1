"""`runtime/connections/whole_answers.py`: an answer in one piece is, byte by byte, what uvicorn sends in two."""

import asyncio
import gc
from contextlib import closing
from typing import Any

import pytest
from starlette.responses import Response

from epochal.runtime.connections.whole_answers import AT_ONCE_IN_SCOPE, send_whole
from epochal.runtime.http.http_server import Endpoint, serving_app
from epochal.runtime.metrics.metrics_registry import HttpMetrics, MeasuredRequests, new_registry
from tests.support.bounds import BOUND_S
from tests.support.thinned import thinned

NEXT = b" HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def response_to(path: str) -> Response:
    """Return the response to a request of this path."""
    if path == "/unchanged":
        return Response(status_code=304, headers={"ETag": '"1"'})
    if path == "/broken":
        return Response(b"x", headers={"X-Told": "a\r\nSet-Cookie: b"})
    return Response(b"found " + path.encode(), headers={"Cache-Control": "no-store"}, media_type="text/plain")


class Application:
    """Answers by `send_whole`, unless it is to answer as uvicorn does; counts what was not sent in one piece."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self.in_pieces = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self._at_once:
            scope.pop(AT_ONCE_IN_SCOPE)

        async def counted(message: Any) -> None:
            self.in_pieces += message["type"] == "http.response.start"
            await send(message)

        await send_whole(response_to(scope["path"]), scope, receive, counted)


async def answers(application: Any, sent: bytes) -> bytes:
    """Return all that a server answers until it closes the connection, without the time of day."""
    async with serving_app(Endpoint(port=0), application) as url, asyncio.timeout(BOUND_S):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with closing(writer):
            writer.write(sent)
            lines = (await reader.read()).split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"date:"))


@thinned(
    ("sent", "in_pieces"),
    [
        pytest.param(b"GET /a" + LAST, 0, id="one"),
        pytest.param(b"GET /a" + NEXT + b"GET /b" + NEXT + b"GET /c" + LAST, 0, id="three at once"),
        pytest.param(b"GET /a HTTP/1.0\r\nHost: h\r\n\r\n", 0, id="an old client"),
        pytest.param(b"GET /unchanged" + LAST, 0, id="no body"),
        pytest.param(b"HEAD /a" + LAST, 1, id="head alone"),
        pytest.param(b"GET /broken" + LAST, 1, id="a header that would be two"),
    ],
)
async def test_answer_in_one_piece_is_what_uvicorn_sends(sent: bytes, in_pieces: int) -> None:
    whole, apart = Application(at_once=True), Application(at_once=False)
    assert await answers(whole, sent) == await answers(apart, sent)
    assert whole.in_pieces == in_pieces
    assert apart.in_pieces == sent.count(b"HTTP/")


async def test_measured_answer_in_one_piece_is_counted_and_leaves_nothing() -> None:
    registry = new_registry()
    application = MeasuredRequests(Application(at_once=True), HttpMetrics(registry))
    gc.collect()
    gc.disable()
    try:
        assert (await answers(application, b"GET /a" + LAST)).endswith(b"found /a")
        assert not [each for each in gc.get_objects() if type(each).__name__ in ("Answer", "RequestResponseCycle")]
    finally:
        gc.enable()
    labels = {"method": "(none)", "route": "(none)", "status": "2xx"}
    assert registry.get_sample_value("epochal_http_request_duration_seconds_count", labels) == 1
    assert registry.get_sample_value("epochal_http_response_body_bytes_total", {"route": "(none)"}) == 8
