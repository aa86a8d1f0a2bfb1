"""`runtime/http/http_client.py`: addresses, what went wrong, refusals, and requests that are left."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

import epochal.runtime.http.http_client
from epochal.runtime.http.aiohttp_transport import AiohttpTransport, Client, PlainRequest
from epochal.runtime.http.http_client import (
    MAX_LEFT_REQUESTS,
    LeftRequests,
    check_url,
    open_client,
    reason_of,
    refusal_in,
    user_mistake,
    whole_answer,
)
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import PROBLEM_JSON, Refusal
from tests.support.bounds import BOUND_S
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port


@pytest.mark.parametrize("url", ["http://host", "https://host:8000", "http://[::1]:8000", "https://proxy/behind/it"])
def test_url_of_a_server_is_accepted(url: str) -> None:
    check_url(url, "coordinator")


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://host", "http://", "http://host:65536", "http://host:port"])
def test_url_of_no_server_is_the_users_mistake(url: str) -> None:
    with pytest.raises(InvalidInput, match="coordinator URL"):
        check_url(url, "coordinator")


def test_file_without_authorities_is_the_users_mistake() -> None:
    with pytest.raises(InvalidInput, match=f"--tls-ca {__file__}"):
        open_client("https://host", "coordinator", __file__)


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, f"b.{'a' * 64}.c"])
def test_name_that_no_host_can_have_is_the_users_mistake(host: str) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a host; allowed: parts of 1 to 63 characters"):
        check_url(f"http://{host}:8000", "coordinator")


@pytest.mark.parametrize("url", ["http://a.b.:80", "http://[fe80::1]:80", f"http://{'a' * 63}.b"])
def test_name_at_its_limits_is_accepted(url: str) -> None:
    check_url(url, "coordinator")


PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize("proxied", [False, True])
def test_missing_file_of_authorities_is_named_by_its_variable(no_proxies: pytest.MonkeyPatch, proxied: bool) -> None:
    no_proxies.setenv("SSL_CERT_FILE", "/nonexistent")
    if proxied:
        no_proxies.setenv("all_proxy", "http://127.0.0.1:9")
    with pytest.raises(InvalidInput, match=r"^SSL_CERT_FILE=/nonexistent: No such file or directory; allowed"):
        open_client("http://host", "coordinator", True)


async def test_proxy_that_does_not_answer_is_named(no_proxies: pytest.MonkeyPatch) -> None:
    proxy = f"http://127.0.0.1:{free_port()}"
    no_proxies.setenv("http_proxy", proxy.replace("//", "//user:secret@"))
    url = "http://coordinator.example"
    reason = reason_of(await error_at(url), url)
    shown = proxy.replace("//", "//user:…@")
    assert reason.endswith(f", by way of the proxy {shown} that the environment names")
    no_proxies.setenv("no_proxy", "coordinator.example")
    assert "proxy" not in reason_of(httpx.ConnectError("no way"), url)


async def error_at(url: str) -> httpx.HTTPError:
    """Return the error of httpx for this URL."""
    async with open_client(url, "coordinator", True, timeout=BOUND_S) as client:
        with pytest.raises(httpx.HTTPError) as raised:
            await whole_answer(client, client.build_request("GET", "/"))
    return raised.value


@asynccontextmanager
async def server_that_sends(data: bytes) -> AsyncIterator[str]:
    """Yield the `http://` URL of a server that reads a little, sends these bytes and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_https_where_a_server_speaks_plain_http_names_the_other_scheme() -> None:
    async with server_that_sends(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        wrong = url.replace("http:", "https:")
        mistake = user_mistake(await error_at(wrong), wrong)
    assert mistake == f"{wrong} does not speak TLS; the server may be at {url}"


async def test_http_where_a_server_hangs_up_asks_for_https() -> None:
    async with server_that_sends(b"") as url:
        error = await error_at(url)
    assert user_mistake(error, url) is None, "it may as well be starting"
    assert reason_of(error, url).endswith("(does it serve https:// there?)")
    assert "https" not in reason_of(error, url, has_answered=True)


def test_certificate_that_is_not_trusted_is_the_users_mistake() -> None:
    cause = ssl.SSLCertVerificationError("it is its own")
    cause.verify_message = "self-signed certificate"
    cause.verify_code = 18
    error = httpx.ConnectError("failed")
    error.__cause__ = cause
    mistake = user_mistake(error, "https://host")
    assert mistake == "https://host is not trusted (self-signed certificate); --tls-ca names whom to trust"


AT_ONCE = "/at-once"


class _SlowServer:
    """Answers each request once it may, and `AT_ONCE` at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.connections: list[asyncio.Task[Any]] = []
        self.url = ""

    def request(self, path: str = "/") -> PlainRequest:
        return PlainRequest("GET", self.url + path, httpx.Timeout(BOUND_S))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.append(task)
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.asked.set()
                if AT_ONCE.encode() not in head:
                    await self.may_answer.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def slow_server(connections: int = 1) -> AsyncIterator[tuple[_SlowServer, httpx.AsyncClient]]:
    """Yield a slow server and a client with so many connections to it at a time."""
    slow = _SlowServer()
    server = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    slow.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with Client(AiohttpTransport(PLAIN, None, connections), timeout=BOUND_S) as client:
            yield slow, client
        slow.may_answer.set()
        await asyncio.wait(slow.connections)


async def test_request_whose_caller_is_cancelled_keeps_its_connection() -> None:
    async with slow_server() as (slow, client):
        requests = LeftRequests(client)
        asking = asyncio.create_task(requests.answer(slow.request()))
        await slow.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        slow.may_answer.set()
        answers = [await requests.answer(slow.request()) for _ in range(3)]
        await requests.aclose()
    assert [answer.content for answer in answers] == [b"ok"] * 3
    assert len(slow.connections) == 1


async def test_requests_that_are_left_leave_connections_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_client, "LEFT_REQUEST_S", 2 * BOUND_S)
    async with slow_server(connections=MAX_LEFT_REQUESTS + 1) as (slow, client):
        requests = LeftRequests(client)
        asking = [asyncio.create_task(requests.answer(slow.request())) for _ in range(20)]
        await slow.asked.wait()
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        async with asyncio.timeout(BOUND_S):
            answer = await requests.answer(slow.request(AT_ONCE))
        await requests.aclose()
    assert answer.content == b"ok"


async def test_requests_that_were_left_end_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_client, "LEFT_REQUEST_S", 2 * BOUND_S)
    async with slow_server() as (slow, client):
        requests = LeftRequests(client)
        asking = asyncio.create_task(requests.answer(slow.request()))
        await slow.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(BOUND_S):
            await requests.aclose()


def refusal_of(answer: httpx.Response) -> Refused:
    refused = refusal_in(answer)
    assert refused is not None
    return refused


def problem(body: Any, **headers: str) -> httpx.Response:
    return httpx.Response(409, headers={"Content-Type": PROBLEM_JSON, **headers}, content=json.dumps(body))


@pytest.mark.parametrize("kind_as", ["urn:epochal:problem:behind", "https://epochal.dev/problems/behind"])
def test_problem_is_a_refusal_with_its_members(kind_as: str) -> None:
    refused = refusal_of(problem({"type": kind_as, "detail": "so it is", "step": 12, "self": 1, "kind": 2}))
    assert (refused.kind, refused.message, refused.context) == (Refusal.BEHIND, "so it is", {"step": 12})


def test_problem_of_a_kind_that_nobody_knows_keeps_its_words() -> None:
    refused = refusal_of(problem({"type": "urn:epochal:problem:new", "title": "something new"}))
    assert (refused.kind, refused.message) == (Refusal.UNKNOWN, "something new")


def test_problem_says_how_long_to_wait() -> None:
    refused = refusal_of(problem({"type": "urn:epochal:problem:overloaded"}, **{"Retry-After": "3"}))
    assert refused.context == {"retry_after_s": 3.0}


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, content=b"{}"),
        problem([]),
        problem({"type": 7}),
        httpx.Response(500, headers={"Content-Type": PROBLEM_JSON}, content=b"not JSON"),
    ],
    ids=["another type", "a list", "a number for a type", "no JSON"],
)
def test_answer_without_a_problem_holds_no_refusal(answer: httpx.Response) -> None:
    assert refusal_in(answer) is None
