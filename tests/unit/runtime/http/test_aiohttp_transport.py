"""`runtime/http/aiohttp_transport.py` over real sockets: answers arrive whole, and errors are those of httpx."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from epochal.runtime.http import http_client
from epochal.runtime.http.aiohttp_transport import AiohttpTransport, Client, PlainRequest
from epochal.runtime.http.http_client import LeftRequests, whole_answer
from epochal.state.errors import SpoolFull
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port
from tests.support.servers.raw_http import head_of, proxy, raw_server

BOUND_S = 5.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
ENDLESS_BYTES = 32 * 1024 * 1024


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@dataclass
class Server:
    """A server that answers each request with the next bytes it is given; None closes the connection instead."""

    answers: list[bytes | None]
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connection_count: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while True:
                self.heads.append((await head_of(reader)).lower())
                lengths = [int(line[15:]) for line in self.heads[-1].split("\r\n") if line.startswith("content-length")]
                self.bodies.append(await reader.readexactly(sum(lengths)))
                answer = self.answers.pop(0)
                if answer is None:
                    return
                writer.write(answer)
                is_framed = any(framing in answer for framing in (b"Content-Length", b"chunked", b" 204 "))
                if not is_framed or b"Connection: close" in answer:
                    return
        finally:
            self.ended.set()


@asynccontextmanager
async def talking(
    *answers: bytes | None, connections: int = 2, before_host: str = ""
) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    server = Server(list(answers))
    async with raw_server(server.speak) as port, client_of(port, connections, before_host) as client:
        yield client, server


def client_of(port: int, connections: int = 2, before_host: str = "") -> httpx.AsyncClient:
    url, transport = f"http://{before_host}127.0.0.1:{port}", AiohttpTransport(PLAIN, None, connections)
    return Client(transport, base_url=url, timeout=BOUND_S, follow_redirects=True)


@pytest.fixture(params=[True, False], autouse=True)
def plainly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go past httpx, or by way of it: answers and errors are the same."""
    monkeypatch.setattr(Ways, "plain", request.param)


class Ways:
    plain = True


async def get(client: httpx.AsyncClient, **options: object) -> httpx.Response:
    if Ways.plain:
        limits = httpx.Timeout(options.get("timeout", BOUND_S))  # type: ignore[arg-type]
        return await LeftRequests(client).answer(PlainRequest("GET", f"{client.base_url}/x?a=b%2Fc", limits))
    return await whole_answer(client, client.build_request("GET", "/x?a=b%2Fc", **options))  # type: ignore[arg-type]


async def test_requests_share_a_connection_and_arrive_whole() -> None:
    async with talking(OK, OK) as (client, server):
        assert (await get(client)).text == "good"
        answer = await client.post("/x", content=b"body", headers={"X-Own": "1"})
    assert (answer.status_code, answer.content) == (200, b"good")
    assert server.connection_count == 1
    assert server.heads[0].startswith("get /x?a=b%2fc http/1.1\r\n")
    assert "x-own: 1\r\n" in server.heads[1]
    assert server.bodies == [b"", b"body"]


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
async def test_answers_of_every_form_arrive_whole(answer: bytes, status: int, body: bytes) -> None:
    async with talking(answer, OK) as (client, server):
        found = await get(client)
        assert (found.status_code, found.content) == (status, body)
        assert (await get(client)).content == b"good"
        assert server.connection_count == (2 if b"close" in answer or body == b"until the end" else 1)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ngo", httpx.ReadTimeout, "."),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nx",
            httpx.RemoteProtocolError,
            ".",
        ),
        (b"nonsense, Content-Length\r\n\r\n", httpx.RemoteProtocolError, "."),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"x" * 99, httpx.RemoteProtocolError, "50 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz", httpx.DecodingError, "not gzip"),
    ],
)
async def test_exchange_that_fails_is_an_error_of_httpx(
    answer: bytes, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 50)
    async with talking(answer, OK) as (client, _):
        with pytest.raises(error, match=says):
            await get(client, timeout=0.2 if error is httpx.ReadTimeout else BOUND_S)
        assert (await get(client)).content == b"good"


async def test_server_that_hangs_up_has_sent_no_response() -> None:
    async with talking(None, None) as (client, _):
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await client.post("/")


async def test_server_that_does_not_listen_is_a_connect_error() -> None:
    async with client_of(free_port()) as client:
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
    async with talking(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", connections=1) as (client, _):
        held = await client.send(client.build_request("GET", "/"), stream=True)
        with pytest.raises(httpx.ConnectTimeout):
            await get(client, timeout=httpx.Timeout(BOUND_S, pool=0.05))
        await held.aclose()


@pytest.mark.parametrize(
    "begin",
    [b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: "],
    ids=["a field", "a trailer"],
)
async def test_endless_head_is_refused_after_its_limit(begin: bytes) -> None:
    sent_bytes = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        await head_of(reader)
        writer.write(begin)
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent_bytes += 65536

    async with raw_server(speak) as port, client_of(port) as client, asyncio.timeout(BOUND_S):
        with pytest.raises(httpx.RemoteProtocolError):
            await get(client)
    assert sent_bytes < ENDLESS_BYTES, "most of them wait in the sockets"


async def test_redirect_is_followed_and_its_body_is_not_read() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if " /y " in await head_of(reader):
            writer.write(OK)
            await reader.read()
        writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /y\r\nContent-Length: %d\r\n\r\n" % 2**40)
        await reader.read()

    async with raw_server(speak) as port, client_of(port) as client:
        assert (await get(client)).content == b"good"


async def test_answer_that_is_compressed_is_decoded() -> None:
    body = gzip.compress(b"a long document")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with talking(head + body) as (client, _):
        found = await get(client)
    assert found.content == b"a long document"


async def test_name_and_password_of_the_url_are_sent_as_httpx_does() -> None:
    async with talking(OK, before_host="user:secret@") as (client, server):
        await get(client)
    assert "authorization: basic dxnlcjpzzwnyzxq=" in server.heads[0]


async def test_cookie_of_a_balancer_is_sent_back_as_httpx_does() -> None:
    sticky = b"HTTP/1.1 200 OK\r\nSet-Cookie: replica=two; Path=/; HttpOnly\r\nContent-Length: 0\r\n\r\n"
    async with talking(sticky, OK, OK) as (client, server):
        for _ in range(3):
            await get(client)
    assert ["cookie: replica=two" in head for head in server.heads] == [False, True, True]


async def test_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    async with talking(OK) as (direct, server), raw_server(proxy(asked)) as proxy_port:
        monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{proxy_port}")
        async with client_of(direct.base_url.port or 0) as client:
            assert (await get(client)).content == b"good"
    assert len(asked) == len(server.heads) == 1


def streaming(client: httpx.AsyncClient, pieces: Callable[[], AsyncIterator[bytes]], size: int) -> httpx.Request:
    headers = {"Content-Length": str(size)}
    return client.build_request("PUT", "/", content=pieces(), headers=headers)


async def test_body_in_pieces_arrives_with_its_length() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"bo"
        yield b"dy"

    async with talking(OK) as (client, server):
        assert (await whole_answer(client, streaming(client, pieces, 4))).content == b"good"
    assert server.bodies == [b"body"]
    assert "transfer-encoding" not in server.heads[0]


async def test_body_that_cannot_be_read_raises_its_own_error() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"bo"
        raise SpoolFull("cut short by somebody else")

    async with talking(OK) as (client, _):
        with pytest.raises(SpoolFull):
            await whole_answer(client, streaming(client, pieces, 4))


@pytest.mark.parametrize("takes_some", [False, True])
async def test_body_that_is_sent_slowly_is_given_up_without_progress_only(takes_some: bool) -> None:
    """A server that takes a piece now and then takes longer in all than the limit of each."""
    piece, count = bytes(1024 * 1024), 32

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        left_bytes = count * len(piece)
        while left_bytes > 0 and takes_some:
            left_bytes -= len(await reader.read(len(piece)))
            await asyncio.sleep(0.02)
        if takes_some:
            writer.write(OK)
        await asyncio.Event().wait()

    async with raw_server(speak, limit_bytes=len(piece)) as port, client_of(port) as client:
        request = streaming(client, pieces, count * len(piece))
        request.extensions["timeout"] = {"write": 0.5, "read": BOUND_S}
        if takes_some:
            assert (await whole_answer(client, request)).content == b"good"
        else:
            with pytest.raises(httpx.WriteTimeout):
                await whole_answer(client, request)
