"""The lean transport beside httpx's own: the same requests arrive, and the same answers are returned, or errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from epochal.runtime.http.http_client import LeanClient, open_client, open_lean_client, whole_answer
from epochal.runtime.http.lean_transport import MAX_HEAD_BYTES, SHORT
from tests.support.servers.raw_http import Speak, head_of, raw_server

BOUND_S = 5.0
Outcome = tuple[int | str, bytes]
ODD_ANSWERS: dict[str, tuple[bytes, Outcome]] = {
    "two answers": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\ndef",
        (200, b"abc"),
    ),
    "something behind": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdefgh", (200, b"abc")),
    "something behind the last": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabcdefgh",
        (200, b"abc"),
    ),
    "a body that may not be": (b"HTTP/1.1 204 No\r\nContent-Length: 1\r\n\r\nx", (204, b"")),
    "another protocol": (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        ("RemoteProtocolError", b""),
    ),
    "many fields": (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"Content-Length: 1\r\n\r\nx", (200, b"x")),
    "a long head": (
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 3 * MAX_HEAD_BYTES + b"\r\nContent-Length: 1\r\n\r\nx",
        ("RemoteProtocolError", b""),
    ),
    "a head of the longest kind": (
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * (MAX_HEAD_BYTES - 100) + b"\r\nContent-Length: 1\r\n\r\nx",
        (200, b"x"),
    ),
    "another encoding": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        ("RemoteProtocolError", b""),
    ),
    "a status below 100": (b"HTTP/1.1 099 P\r\nContent-Length: 1\r\n\r\nx", ("RemoteProtocolError", b"")),
    "a redirection": (b"HTTP/1.1 302 F\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", (302, b"")),
    "a body that is not gzip": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz",
        ("DecodingError", b""),
    ),
    "an older version": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (200, b"x")),
    "a newer version": (b"HTTP/2.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (200, b"x")),
    "chunks that end early": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx",
        ("RemoteProtocolError", b""),
    ),
}


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def both(speak: Speak, before_host: str = "") -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Yield a lean client of a server, and one of httpx."""
    async with raw_server(speak) as port:
        url = f"http://{before_host}127.0.0.1:{port}"
        async with (
            open_lean_client(url, "coordinator", True, httpx.Limits()) as lean,
            open_client(url, "coordinator", True) as general,
        ):
            yield lean, general


async def get(client: httpx.AsyncClient) -> httpx.Response:
    request = client.build_request("GET", "/", extensions=SHORT, timeout=httpx.Timeout(BOUND_S))
    return await whole_answer(client, request)


async def outcome(client: httpx.AsyncClient) -> Outcome:
    try:
        answer = await get(client)
    except httpx.HTTPError as error:
        return type(error).__name__, b""
    return answer.status_code, answer.content


@pytest.mark.parametrize(("answer", "expected"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
async def test_odd_answer_is_taken_as_httpx_takes_it(answer: bytes, expected: Outcome) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answer)
        await writer.drain()

    async with both(speak) as (lean, general):
        assert await outcome(lean) == expected
        assert await outcome(general) == expected


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200 OK\r\nA: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=",
    ],
    ids=["a field", "a trailer", "a chunk's head"],
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

    async with both(speak) as (lean, _), asyncio.timeout(BOUND_S):
        with pytest.raises(httpx.RemoteProtocolError):
            await get(lean)
    assert sent_bytes < 32 * 2**20, "most of them wait in the sockets"


async def test_endless_interim_answers_are_refused_after_their_limit() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100)
            await writer.drain()

    async with both(speak) as (lean, _), asyncio.timeout(BOUND_S):
        with pytest.raises(httpx.RemoteProtocolError, match="head"):
            await get(lean)


class Recorder:
    """Answers each request with the next answer, the last one again and again; keeps the heads of the requests."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.heads: list[list[str]] = []

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first, *fields = (await head_of(reader)).lower().split("\r\n")
            self.heads.append([first, *sorted(field for field in fields if field)])
            writer.write(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"


async def test_request_arrives_as_httpx_sends_it() -> None:
    server = Recorder(OK)
    async with both(server.speak, "user:secret@") as clients:
        for client in clients:
            client.headers["X-Own"] = "1"
            assert (await get(client)).status_code == 200
    lean, general = server.heads
    assert lean == general
    assert "authorization: basic dxnlcjpzzwnyzxq=" in lean


async def test_cookie_of_a_balancer_is_sent_back_as_httpx_does() -> None:
    sticky = b"HTTP/1.1 200 OK\r\nSet-Cookie: replica=two; Path=/; HttpOnly\r\nContent-Length: 0\r\n\r\n"
    for number in range(2):
        server = Recorder(sticky, OK)
        async with both(server.speak) as clients:
            for _ in range(3):
                await get(clients[number])
        assert ["cookie: replica=two" in head for head in server.heads] == [False, True, True]


async def test_hooks_of_a_client_are_called_as_httpx_does() -> None:
    called: list[str] = []

    async def asked(request: httpx.Request) -> None:
        called.append(request.method)

    async def answered(answer: httpx.Response) -> None:
        called.append(str(answer.status_code))

    async with both(Recorder(OK).speak) as (lean, _):
        assert isinstance(lean, LeanClient)
        lean.event_hooks = {"request": [asked], "response": [answered]}
        await get(lean)
    assert called == ["GET", "200"]


async def test_answer_without_a_body_to_a_head_request_is_left_to_httpx() -> None:
    async with both(Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n").speak) as clients:
        for client in clients:
            request = client.build_request("HEAD", "/", extensions=SHORT, timeout=httpx.Timeout(BOUND_S))
            assert (await whole_answer(client, request)).status_code == 200


async def test_request_that_is_sent_slowly_is_not_given_up() -> None:
    """The server takes longer than the read timeout allows, and no longer than that for what the sockets hold."""
    body = b"x" * 16 * 2**20

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        left_bytes = len(body)
        while left_bytes > 0:
            left_bytes -= len(await reader.read(2**20))
            await asyncio.sleep(0.15)
        writer.write(OK)

    async with raw_server(speak, limit_bytes=2**20) as port:
        url = f"http://127.0.0.1:{port}"
        async with open_lean_client(url, "coordinator", True, httpx.Limits()) as lean:
            timeout = httpx.Timeout(BOUND_S, read=1.5)
            request = lean.build_request("POST", "/", content=body, extensions=SHORT, timeout=timeout)
            assert (await whole_answer(lean, request)).content == b"x"
