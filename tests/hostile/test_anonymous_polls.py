"""Readers without a token that wait in numbers: members and data servers are told of news as if they were alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from epochal.coordinator.run import long_polls, publication
from epochal.coordinator.run.long_polls import Pool, ReaderKind
from epochal.runtime.http import http_server as http_server
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import ADMIN, Served, WireClient, problem, served, served_over_sockets, training

STRANGERS = 40
LONG = {"config__client_timeout_s": 3 * BOUND_S}
POLL_S = BOUND_S
"""No poll of these runs ends by itself: its time is at most a third of `client_timeout_s`."""
SMALL = {
    ReaderKind.MEMBER: Pool(total=4, each=4),
    ReaderKind.DATA_SERVER: Pool(total=2, each=2),
    ReaderKind.STRANGER: Pool(total=STRANGERS, each=STRANGERS),
}


@contextlib.asynccontextmanager
async def strangers_waiting(run: Served, version: int) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """Let as many strangers wait for news as there is room for, over connections of their own."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=run.http.base_url, limits=limits, timeout=BOUND_S) as http:
        url = f"{run.run_url}?wait_s={POLL_S}&after={version}"
        polls = [asyncio.create_task(http.get(url)) for _ in range(STRANGERS)]
        while (
            f"epochal_coordinator_stranger_long_polls_waiting {STRANGERS}.0"
            not in (await run.http.get("/metrics")).text
        ):
            continue
        yield polls
        for poll in polls:
            poll.cancel()


async def test_strangers_that_take_every_place_keep_nobody_else_out(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_polls, "POOLS", SMALL)
    monkeypatch.setattr(long_polls, "MAX_MORE_HOLD_S", 0.1)
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, config__init_min_clients=2, **LONG) as run:
        member, second = WireClient(run, 1), WireClient(run, 2)
        await member.join()
        server = run.handlers.program_token("data-server").token
        version = run.service.published.version
        async with strangers_waiting(run, version):
            refused = await run.http.get(f"{run.run_url}?wait_s=0.1&after={version}")
            assert problem(refused) == "overloaded"
            told = [
                asyncio.create_task(member.send("GET", f"?wait_s={POLL_S}&after={version}", token=token))
                for token in (member.token, server)
            ]
            await second.join()
            assert [(await answer).status_code for answer in told] == [200, 200]


async def test_server_that_stops_logs_nothing_for_the_strangers_that_wait(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_polls, "POOLS", SMALL)
    monkeypatch.setattr(http_server, "SHUTDOWN_TIMEOUT_S", 1)
    async with asyncio.timeout(BOUND_S), contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=BOUND_S)
        )
        run = await stack.enter_async_context(served_over_sockets(place, **LONG))
        url = f"{run.http.base_url}{run.run_url}?wait_s={POLL_S}&after={run.service.published.version}"
        polls = [asyncio.create_task(http.get(url)) for _ in range(STRANGERS + 1)]  # one of them has no place
        while (
            f'epochal_http_connections{{peer="reader"}} {STRANGERS + 2}.0' not in (await run.http.get("/metrics")).text
        ):
            continue
    await asyncio.wait(polls)
    assert not [record for record in caplog.records if record.exc_info]


async def test_many_strangers_are_told_later_than_a_data_server(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "STRANGERS_TOLD_PER_S", STRANGERS / (2 * BOUND_S))
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, **LONG) as run:
        members = await training(run)
        version = run.service.published.version
        async with strangers_waiting(run, version) as later:
            server = run.handlers.program_token("data-server").token
            news = asyncio.create_task(members[0].send("GET", f"?wait_s={POLL_S}&after={version}", token=server))
            for member in members:
                assert (await member.send("DELETE", "/clients/me")).status_code == 204
            told = await news
            assert told.status_code == 200, told.text
            assert told.json()["version"] > version
            assert not any(poll.done() for poll in later)


async def test_data_server_token_needs_the_admin_token_and_opens_nothing_else() -> None:
    async with served(state_file()) as run:
        client = WireClient(run, 1)
        assert problem(await client.send("POST", "/tokens/data-server")) == "unauthorized"
        made = await client.send("POST", "/tokens/data-server", token=ADMIN)
        token = made.json()["token"]
        assert (await client.send("GET", "", token=token)).status_code == 200
        for method, place in (("GET", "/clients/me"), ("POST", "/pause"), ("GET", "/v1/blobs/" + "ab" * 32)):
            refusal = await client.send(method, place, token=token)
            assert refusal.status_code in (401, 403)
