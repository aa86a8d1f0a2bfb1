"""`runtime/connections/connecting.py`: the first of a host's addresses that answers is taken, by every client."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from epochal.runtime.connections.connecting import connected_socket
from epochal.runtime.http.http_client import open_client, whole_answer
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port
from tests.support.servers.raw_http import head_of, raw_server

BOUND_S = 5.0
HOST = "several.example"
SILENT, ANSWERING = "127.0.0.2", "127.0.0.1"


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of addresses that the name `HOST` has."""
    known: list[str] = []

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        assert host == HOST
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, port)) for each in known]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


@contextmanager
def silent_address(port: int) -> Iterator[None]:
    """Let `SILENT` take no connection on a port, and refuse none either: its queue of new ones is full."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((SILENT, port))
        full.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((SILENT, port))
        yield


async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")


async def get(port: int) -> int:
    async with open_client(f"http://{HOST}:{port}", "coordinator", PLAIN, timeout=BOUND_S) as client:
        return (await whole_answer(client, client.build_request("GET", "/"))).status_code


async def test_address_that_never_answers_costs_a_moment(addresses: list[str]) -> None:
    addresses += [SILENT, ANSWERING]
    async with raw_server(speak) as port:
        with silent_address(port):
            async with asyncio.timeout(BOUND_S / 2):
                assert await get(port) == 200


async def test_address_that_refuses_costs_nothing(addresses: list[str]) -> None:
    addresses += ["127.0.0.3"] * 12 + [ANSWERING]
    async with raw_server(speak) as port, asyncio.timeout(1.0):
        assert await get(port) == 200


async def test_host_of_which_all_addresses_refuse_is_refused(addresses: list[str]) -> None:
    addresses += [SILENT, ANSWERING]
    with pytest.raises(ConnectionRefusedError):
        await connected_socket(HOST, free_port())


async def test_name_that_no_host_can_have_is_not_known() -> None:
    with pytest.raises(socket.gaierror, match=r"'a\.\.b' is not the name of a host"):
        await connected_socket("a..b", 80)
