"""Requests to an HTTP data source carry the trace of the round, to the location's own servers only."""

import contextlib
from collections.abc import Iterator

from epochal.data_providers.sources.http.requester import Requester
from epochal.runtime.tracing.request_spans import requests_traced_by
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server

PARENT = f"00-{7:032x}-{9:016x}-01"


class Tracer:
    """Notes which requests were made."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def request(self, name: str, server: str) -> Iterator[str | None]:
        self.asked.append((name, server))
        yield PARENT


async def test_traceparent_goes_to_own_servers_and_not_where_they_redirect() -> None:
    own: list[HttpRequest] = []
    abroad: list[HttpRequest] = []

    async def elsewhere(request: HttpRequest) -> HttpReply:
        abroad.append(request)
        return HttpReply(206, b"abcd", {"Content-Range": "bytes 0-3/4"})

    async with http_server(elsewhere) as other:

        async def home(request: HttpRequest) -> HttpReply:
            own.append(request)
            return HttpReply(307, b"", {"Location": f"{other}/signed?secret=1"})

        async with http_server(home) as url:
            tracer, requester = Tracer(), Requester([url], {})
            with requests_traced_by(tracer):
                await requester.ask(f"{url}/a.bin?token=1", "bytes=0-3", discarded)
            await requester.ask(f"{url}/a.bin", "bytes=0-3", discarded)
            await requester.aclose()
    assert [request.headers.get("traceparent") for request in own] == [PARENT, None]
    assert [request.headers.get("traceparent") for request in abroad] == [None, None]
    assert tracer.asked == [("ask data source", url.removeprefix("http://"))]


def discarded(_: object) -> None:
    """Nobody wants the body."""
