"""Connections that ask and do not read: their answers are given up, and the others go on."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

import epochal.runtime.http.http_server
from epochal.coordinator.serve import serving
from epochal.runtime.connections.shedding import (
    MAX_CONNECTIONS_PER_MEMBER,
    ConnectionLimits,
    Peer,
    ServerConnections,
    Shed,
)
from epochal.runtime.http.http_server import MAX_PIPELINED_REQUESTS, Endpoint, serving_app
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import Served, WireClient

PIECE = b"x" * 256 * 1024
ANSWER_PIECES = 64
"""An answer of 16 MiB: more than the sockets of a connection hold."""
ASK = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def large_answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer `/large` with 16 MiB, anything else with two bytes."""
    is_large = scope["path"] == "/large"
    pieces = [PIECE] * ANSWER_PIECES if is_large else [b"ok"]
    length = sum(map(len, pieces))
    headers = [(b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, piece in enumerate(pieces, 1):
        await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})


@contextlib.asynccontextmanager
async def serving_large() -> AsyncIterator[tuple[str, ServerConnections]]:
    connections = ServerConnections(ConnectionLimits(100))
    async with serving_app(Endpoint(port=0), large_answer, connections) as url:
        yield url, connections


async def connected(url: str) -> socket.socket:
    """Return a connection that takes few bytes which nobody reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    host, _, port = url.removeprefix("http://").partition(":")
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    return sock


@contextlib.asynccontextmanager
async def attacking(url: str, count: int, sent: bytes) -> AsyncIterator[None]:
    """Hold connections that have sent these bytes, and read nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(contextlib.closing(await connected(url))).send(sent)
        yield


async def answers(url: str, until: Callable[[], bool]) -> None:
    """Ask again and again until the condition holds; every answer must be right."""
    async with httpx.AsyncClient(base_url=url, timeout=BOUND_S) as http, asyncio.timeout(BOUND_S):
        while not until():
            assert (await http.get("/")).text == "ok"


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"], ids=["kept alive", "closed"])
async def test_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch, close: bytes) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "UNREAD_TIMEOUT_S", 0.3)
    sent = b"GET /large HTTP/1.1\r\nHost: localhost\r\n" + close + b"\r\n"
    async with serving_large() as (url, connections), attacking(url, 5, sent):
        await answers(url, lambda: connections.shed_counts[Shed.UNREAD] == 5)


async def test_answers_that_wait_unread_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "MAX_UNREAD_BYTES", 0)
    monkeypatch.setattr(epochal.runtime.http.http_server, "TICKS_PER_SWEEP", 1)
    async with (
        serving_large() as (url, connections),
        attacking(url, 12, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ):
        await answers(url, lambda: connections.shed_counts[Shed.UNREAD] == 12)


async def test_steady_reader_gets_its_answer_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "UNREAD_TIMEOUT_S", 5.0)
    async with serving_large() as (url, connections):
        sock = await connected(url)
        sock.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        reader, writer = await asyncio.open_connection(sock=sock)
        answer = await reader.read()
        assert len(answer) > len(PIECE) * ANSWER_PIECES
        assert not connections.shed_counts
        writer.close()


async def test_requests_in_advance_are_bounded_and_others_are_answered() -> None:
    sent = b"".join(ASK % number for number in range(1_000))
    async with serving_large() as (url, connections), attacking(url, 60, sent):
        await answers(url, lambda: connections.shed_counts[Shed.PIPELINED] == 60)


async def test_few_requests_in_advance_are_answered_in_order() -> None:
    async with serving_large() as (url, connections):
        reader, writer = await asyncio.open_connection(sock=await connected(url))
        writer.write(ASK % 1 * MAX_PIPELINED_REQUESTS)
        async with asyncio.timeout(BOUND_S):
            for _ in range(MAX_PIPELINED_REQUESTS):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        assert not connections.shed_counts
        writer.close()


async def test_member_holds_a_bounded_number_of_connections(place: RunPlace) -> None:
    async with (
        serving(state_file(), place.serve_options()) as running,
        httpx.AsyncClient(base_url=running.url, timeout=BOUND_S) as http,
    ):
        client = WireClient(Served(running.handlers.service, running.handlers, http, "/v1/runs/test-run"), 1)
        await client.join()
        head = (
            f"GET /v1/runs/test-run/clients/me HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer {client.token}\r\n\r\n"
        )
        async with asyncio.timeout(BOUND_S):
            with contextlib.ExitStack() as stack:
                for _ in range(90):
                    reader, writer = await asyncio.open_connection(sock=await connected(running.url))
                    stack.enter_context(contextlib.closing(writer))
                    writer.write(head.encode())
                    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
                shown = (await http.get("/metrics")).text
        most = f'epochal_http_connections{{peer="{Peer.MEMBER}"}} {MAX_CONNECTIONS_PER_MEMBER}.0'
        assert most in shown
        assert "shedding connections (member)" in (await http.get("/readyz")).text
