"""`runtime/http/http_server.py`: a connection that has ended leaves nothing behind."""

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epochal.runtime.http.http_server import BoundedConnection, Endpoint, serving_app
from tests.support.bounds import BOUND_S
from tests.support.thinned import thinned


async def application(_scope: Any, receive: Any, send: Any) -> None:
    """Answer a request once its body has arrived."""
    while (await receive()).get("more_body"):
        continue
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def no_collector() -> Iterator[None]:
    """Leave reference counting alone to free objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def connection_count() -> int:
    return sum(type(each) is BoundedConnection for each in gc.get_objects())  # isinstance would run properties


@thinned(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nHos", id="part of a head"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1", id="part of a short body"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n1", id="part of a long body"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="a request"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n" * 4, id="four requests"),
        pytest.param(b"nonsense\r\n\r\n", id="nonsense"),
    ],
)
async def test_ended_connections_are_freed_without_the_collector(sent: bytes) -> None:
    async with serving_app(Endpoint(port=0), application) as url:
        address = url.removeprefix("http://").split(":")
        with no_collector():
            for _ in range(10):
                _, writer = await asyncio.open_connection(address[0], int(address[1]))
                writer.write(sent)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(BOUND_S):
                while connection_count():  # noqa: ASYNC110 - nothing tells that an object was freed
                    await asyncio.sleep(0.01)


def transport_count() -> int:
    return sum(type(each).__name__ == "_SelectorSocketTransport" for each in gc.get_objects())


@pytest.mark.nightly
async def test_transport_of_an_ended_connection_is_freed_without_the_collector() -> None:
    async with serving_app(Endpoint(port=0), application) as url:
        host, port = url.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        with no_collector():
            before = transport_count()
            for _ in range(10):  # sockets, because asyncio's own transports end up in a cycle
                with socket.create_connection((host, int(port))) as client:
                    client.setblocking(False)
                    await loop.sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n")
                    assert await loop.sock_recv(client, 1000)
            async with asyncio.timeout(BOUND_S):
                while transport_count() > before:  # noqa: ASYNC110 - nothing tells that an object was freed
                    await asyncio.sleep(0.01)
