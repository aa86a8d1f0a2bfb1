"""The lean transport over real sockets: answers arrive whole, connections are used again, errors are those of httpx."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from epochal.runtime.http import answer_bodies, lean_transport
from epochal.runtime.http.http_client import open_lean_client, whole_answer
from epochal.runtime.http.lean_transport import SHORT

Ask = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]

BOUND_S = 5.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"


@dataclass
class Server:
    """A server that answers each request with the next bytes it is given; None closes the connection instead."""

    answers: list[bytes | None]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connection_count: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    second: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")]
                length = sum(lengths)
                self.requests.append(head + await reader.readexactly(length))
                if len(self.requests) == 2:
                    self.second.set()
                answer = self.answers.pop(0)
                if answer is None:
                    return
                writer.write(answer)
                if b"Content-Length" not in answer and b"chunked" not in answer and b" 204 " not in answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            writer.close()


@asynccontextmanager
async def talking(*answers: bytes | None) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    server = Server(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=2, keepalive_expiry=60.0)
    async with listening, open_lean_client(server.url, "coordinator", True, limits) as client:
        yield client, server


async def get(client: httpx.AsyncClient) -> httpx.Response:
    request = client.build_request("GET", "/x?a=b", extensions=SHORT, timeout=httpx.Timeout(BOUND_S))
    return await client.send(request)


async def get_whole(client: httpx.AsyncClient) -> httpx.Response:
    request = client.build_request("GET", "/x?a=b", extensions=SHORT, timeout=httpx.Timeout(BOUND_S))
    return await whole_answer(client, request)


async def post(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await client.send(client.build_request("POST", "/x", content=body, extensions=SHORT))


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


async def test_requests_share_a_connection_and_arrive_whole() -> None:
    async with talking(OK, OK) as (client, server):
        assert (await get(client)).text == "good"
        answer = await post(client, b"body")
        assert (answer.status_code, answer.content) == (200, b"good")
        assert server.connection_count == 1
        assert server.requests[0].startswith(b"GET /x?a=b HTTP/1.1\r\n")
        assert server.requests[1].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", 200, b"abcd"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n", 304, b""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, b"good"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlast", 200, b"last"),
    ],
)
@pytest.mark.parametrize("ask", [get, get_whole])
async def test_answers_of_every_form_arrive_whole(ask: Ask, answer: bytes, status: int, body: bytes) -> None:
    async with talking(answer, OK) as (client, server):
        found = await ask(client)
        assert (found.status_code, found.content) == (status, body)
        assert (await get(client)).content == b"good"
        assert server.connection_count == (2 if b"close" in answer or body == b"until the end" else 1)


async def test_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async with talking(OK, OK) as (client, server):
        await get(client)
        transport = client._transport
        assert isinstance(transport, lean_transport.LeanTransport)
        kept = transport._kept[0][2]
        kept.close()
        assert (await get(client)).content == b"good"
        assert server.connection_count == 2


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (None, httpx.RemoteProtocolError, "without sending a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ngo", httpx.ReadTimeout, "nothing arrived"),
        (b"nonsense, Content-Length\r\n\r\n", httpx.RemoteProtocolError, "."),
        (
            b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000 + b"\r\nContent-Length: 0\r\n\r\n",
            httpx.RemoteProtocolError,
            "102400",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"x" * 99, httpx.RemoteProtocolError, "50 bytes"),
    ],
)
@pytest.mark.parametrize("ask", [get, get_whole])
async def test_exchange_that_fails_raises_what_httpx_would(
    ask: Ask, answer: bytes | None, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_bodies, "MAX_ANSWER_BYTES", 50)
    async with talking(answer, OK) as (client, server):
        timeout = httpx.Timeout(0.2 if error is httpx.ReadTimeout else BOUND_S)
        request = client.build_request("GET", "/", extensions=SHORT, timeout=timeout)
        with pytest.raises(error, match=says):
            await client.send(request)
        assert (await ask(client)).content == b"good"
        assert server.connection_count == 2


async def test_server_that_does_not_listen_is_a_connect_error() -> None:
    async with talking() as (client, server):
        pass
    async with open_lean_client(server.url, "coordinator", True, httpx.Limits()) as client:
        with pytest.raises(httpx.ConnectError):
            await get(client)


async def test_request_that_is_given_up_ends_its_connection() -> None:
    async with talking(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", OK) as (client, server):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await get(client)
        async with asyncio.timeout(BOUND_S):
            await server.ended.wait()
        assert (await get(client)).content == b"good"


async def test_request_waits_for_a_connection_and_no_longer_than_allowed() -> None:
    silent = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    async with talking(silent, silent, OK) as (client, server), asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(get(client)) for _ in range(2)]
        async with asyncio.timeout(BOUND_S):
            await server.second.wait()
        request = client.build_request("GET", "/", extensions=SHORT, timeout=httpx.Timeout(BOUND_S, pool=0.05))
        with pytest.raises(httpx.PoolTimeout):
            await client.send(request)
        for each in held:
            each.cancel()


@pytest.mark.parametrize("make", [lambda client: client.build_request("GET", "/"), lambda client: _streamed(client)])
async def test_other_requests_go_the_general_way(make: Callable[[httpx.AsyncClient], httpx.Request]) -> None:
    async with talking(OK) as (client, _):
        transport = client._transport
        assert isinstance(transport, lean_transport.LeanTransport)
        assert (await client.send(make(client))).content == b"good"
        assert not transport._kept


def _streamed(client: httpx.AsyncClient) -> httpx.Request:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"body"

    headers = {"Content-Length": "4"}
    return client.build_request("PUT", "/", content=pieces(), headers=headers, extensions=SHORT)


async def test_short_answer_that_leads_elsewhere_is_followed_by_httpx() -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n"
    async with talking(moved, moved, OK) as (client, server):
        client.follow_redirects = True
        assert (await get_whole(client)).content == b"good"
        assert server.requests[-1].startswith(b"GET /y HTTP/1.1\r\n")


async def test_short_answer_that_is_compressed_is_decoded() -> None:
    body = gzip.compress(b"a long document")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with talking(head + body) as (client, _):
        found = await get_whole(client)
    assert (found.content, str(found.request.url.path)) == (b"a long document", "/x")
