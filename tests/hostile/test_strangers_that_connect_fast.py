"""Strangers that connect faster than the coordinator can afford: they are refused, and members come and go."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from epochal.runtime.connections import accepting, shedding
from epochal.runtime.connections.shedding import ConnectionLimits, ServerConnections, Shed
from epochal.runtime.http.http_server import Endpoint, serving_app
from tests.support.bounds import BOUND_S
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import Served, WireClient, served_over_sockets
from tests.support.servers.plain_http import PLAIN

AT_ONCE = 8
NEVER_PER_S = 1e-6
FLOOD = 40
UNFINISHED = b"GET /v1/runs/test-run HTTP/1.1\r\nHost: loc"
ELSEWHERE = tuple(f"127.1.0.{number}" for number in range(1, FLOOD + 1))


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let strangers connect a few times, and not again while the test lasts."""
    for name, value in (
        ("STRANGERS_AT_ONCE", AT_ONCE),
        ("STRANGERS_PER_S", NEVER_PER_S),
        ("ADDRESS_AT_ONCE", AT_ONCE),
        ("ADDRESS_PER_S", NEVER_PER_S),
    ):
        monkeypatch.setattr(shedding, name, value)


@contextlib.asynccontextmanager
async def flooded(url: httpx.URL, addresses: tuple[str, ...], refused: int) -> AsyncIterator[None]:
    """Open connections with unfinished heads from these addresses; enter once so many of them were refused."""
    enough, ended = asyncio.Event(), 0

    async def connect(address: str) -> None:
        nonlocal ended
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection(url.host, url.port, local_addr=(address, 0))
            with contextlib.closing(writer):
                writer.write(UNFINISHED)
                await reader.read()
        ended += 1
        if ended >= refused:
            enough.set()

    async with asyncio.TaskGroup() as tasks:
        flood = [tasks.create_task(connect(address)) for address in addresses]
        await enough.wait()
        yield
        for task in flood:
            task.cancel()


async def connected_anew(run: Served, token: str | None, address: str = "127.0.0.1") -> httpx.Response:
    """Return the answer to a request over a new connection from an address."""
    transport = httpx.AsyncHTTPTransport(local_address=address, verify=PLAIN)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=run.http.base_url, transport=transport, headers=headers) as http:
        return await http.get(run.run_url)


@pytest.mark.usefixtures("few_tokens")
async def test_member_connects_anew_while_a_flood_from_elsewhere_is_refused(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        member = WireClient(run, 1)
        await member.join()
        assert (await member.send("GET", "/clients/me")).status_code == 200
        async with flooded(run.http.base_url, ELSEWHERE, FLOOD - AT_ONCE):
            assert (await connected_anew(run, member.token)).status_code == 200
            with pytest.raises(httpx.TransportError):
                await connected_anew(run, None, "127.2.0.1")
            metrics = (await run.http.get("/metrics")).text
            ready = (await run.http.get("/readyz")).text
        assert 'epochal_http_connections_shed_total{reason="too fast"} ' in metrics
        assert "shedding connections (too fast): " in ready


@pytest.mark.usefixtures("few_tokens")
async def test_flood_from_the_address_of_a_member_leaves_its_connection(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        member = WireClient(run, 1)
        await member.join()
        assert (await member.send("GET", "/clients/me")).status_code == 200
        async with flooded(run.http.base_url, ("127.0.0.1",) * FLOOD, FLOOD - AT_ONCE):
            assert (await member.send("GET", "/clients/me")).status_code == 200


@pytest.mark.usefixtures("few_tokens")
async def test_requests_go_on_between_batches_of_refused_connections(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "ACCEPTS_AT_A_TIME", AT_ONCE)
    monkeypatch.setattr(accepting, "REFUSED_REST_S", BOUND_S)
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        assert (await run.http.get(run.run_url)).status_code == 200
        async with flooded(run.http.base_url, ELSEWHERE, 1):
            metrics = (await run.http.get("/metrics")).text
    assert 0 < float(metrics.partition('{reason="too fast"} ')[2].split()[0]) <= AT_ONCE


@pytest.mark.usefixtures("few_tokens")
async def test_many_members_at_one_address_connect_at_once(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        member = WireClient(run, 1)
        await member.join()
        for _ in range(3 * AT_ONCE):
            assert (await connected_anew(run, member.token)).status_code == 200


@pytest.mark.usefixtures("few_tokens")
async def test_many_join_at_once_from_one_address(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        for number in range(1, 3 * AT_ONCE):
            async with httpx.AsyncClient(base_url=run.http.base_url, verify=PLAIN) as http:
                await WireClient(replace(run, http=http), number).join()
        assert len(run.service.run.members) == 3 * AT_ONCE - 1


async def test_unfinished_heads_go_before_an_older_unfinished_body() -> None:
    connections = ServerConnections(ConnectionLimits(100, strangers=AT_ONCE))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": body})

    async with (
        asyncio.timeout(BOUND_S),
        serving_app(Endpoint(port=0), answer, connections) as url,
        httpx.AsyncClient(base_url=url, verify=PLAIN) as http,
    ):
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        with contextlib.closing(writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbo")
            async with flooded(http.base_url, ELSEWHERE, AT_ONCE):
                writer.write(b"dy")
                assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200")
    assert connections.shed_counts[Shed.STRANGERS] >= AT_ONCE
