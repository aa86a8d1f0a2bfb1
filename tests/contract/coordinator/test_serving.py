"""Serving over real sockets: exposure, TLS files, the port, long polls, and a prompt end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import epochal.runtime.http.bodies
import epochal.runtime.http.http_server
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator.store.store import Store
from epochal.runtime.http.http_server import MAX_HEAD_BYTES, Endpoint
from epochal.state.errors import InvalidInput
from epochal.state.wire import canonical_json
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.served import GENESIS, Served, WireClient
from tests.support.servers.ports import free_port

POLLS = 40
POLL_S = 60
ALL_WAIT = f"epochal_coordinator_long_polls_waiting {POLLS}.0"


@contextlib.asynccontextmanager
async def served_run(folder: Path) -> AsyncIterator[str]:
    async with serving(state_file(), ServeOptions(str(folder), Endpoint(port=0))) as running:
        yield running.url


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize(
    "endpoint", [Endpoint("127.0.0.1"), Endpoint("localhost"), Endpoint("::1"), Endpoint("0.0.0.0", insecure=True)]
)
def test_loopback_and_consent_need_no_tls(endpoint: Endpoint) -> None:
    endpoint.check()


@pytest.mark.parametrize("host", ["0.0.0.0", "coordinator.example"])
def test_exposure_beyond_loopback_needs_tls_or_consent(host: str) -> None:
    with pytest.raises(InvalidInput, match="--insecure"):
        Endpoint(host).check()


async def test_admin_token_is_told_at_the_first_start_that_succeeds(tmp_path: Path) -> None:
    two, not_tls = tmp_path / "two", tmp_path / "not-tls"
    not_tls.write_text("nothing")
    async with served_run(tmp_path / "one") as first:
        port = int(first.rpartition(":")[2])
        for mistake, options in (
            ("--restored", ServeOptions(str(two), Endpoint(port=0), is_restored=True)),
            (f"cannot listen on 127.0.0.1:{port}", ServeOptions(str(two), Endpoint(port=port))),
            ("certificate", ServeOptions(str(two), Endpoint("0.0.0.0", 0, two, tmp_path / "missing"))),
            ("certificate", ServeOptions(str(two), Endpoint("0.0.0.0", 0, not_tls, not_tls))),
        ):
            with pytest.raises(InvalidInput, match=mistake):
                async with serving(state_file(), options):
                    raise AssertionError("it is served")
    async with serving(state_file(), ServeOptions(str(two), Endpoint(port=0))) as started:
        assert started.admin_token is not None
    async with serving(state_file(), ServeOptions(str(two), Endpoint(port=0))) as again:
        assert again.admin_token is None


async def test_who_comes_before_the_run_is_served_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_open, note_served = asyncio.Event(), Store.note_served

    async def note_served_later(store: Store) -> None:
        await is_open.wait()
        await note_served(store)

    monkeypatch.setattr(Store, "note_served", note_served_later)
    url = f"http://127.0.0.1:{free_port()}"
    endpoint = Endpoint(port=int(url.rpartition(":")[2]))
    async with contextlib.AsyncExitStack() as stack:
        served = serving(state_file(), ServeOptions(str(tmp_path), endpoint))
        starting = asyncio.create_task(stack.enter_async_context(served))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=BOUND_S))
        async with asyncio.timeout(BOUND_S):
            while True:
                with contextlib.suppress(OSError):
                    (await connected(url))[1].close()
                    break
        asked = asyncio.create_task(http.get("/v1/runs/test-run"))
        await asyncio.wait([asked], timeout=0.2)
        is_open.set()
        await starting
        assert (await asked).status_code == httpx.codes.OK


async def test_news_reaches_everyone_who_waits_and_the_end_releases_them(tmp_path: Path) -> None:
    options = ServeOptions(str(tmp_path), Endpoint(port=0), genesis=GENESIS)
    limits = httpx.Limits(max_connections=2 * POLLS)
    async with httpx.AsyncClient(limits=limits, timeout=BOUND_S) as http:
        async with asyncio.TaskGroup() as tasks:
            state = state_file(config__init_min_clients=1, config__client_timeout_s=10 * POLL_S)
            async with serving(state, options) as running:
                http.base_url = httpx.URL(running.url)
                client = WireClient(Served(running.handlers.service, running.handlers, http, "/v1/runs/test-run"), 1)
                version = (await http.get("/v1/runs/test-run")).json()["version"]
                url = f"/v1/runs/test-run?wait_s={POLL_S}&after="
                first = [tasks.create_task(http.get(f"{url}{version}")) for _ in range(POLLS)]
                await shows(http, ALL_WAIT)
                await client.join()
                bodies = {(await answer).content for answer in first}
                assert len(bodies) == 1
                assert (
                    running.handlers.service.published.body in bodies
                    or running.handlers.service.published.version > version + 1
                )
                last = [tasks.create_task(http.get(f"{url}{version + 1_000}")) for _ in range(POLLS)]
                await shows(http, ALL_WAIT)
                ended_s = time.monotonic()
            assert time.monotonic() - ended_s < POLL_S / 2
        assert {answer.result().status_code for answer in last} == {304}


async def shows(http: httpx.AsyncClient, line: str) -> None:
    """Return once the metrics contain this line."""
    async with asyncio.timeout(BOUND_S):
        while f"{line}\n" not in (await http.get("/metrics")).text:
            continue


async def test_message_that_does_not_end_is_answered_and_its_connection_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.runtime.http.bodies, "MESSAGE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(epochal.runtime.http.http_server, "SHORT_BODY_WAIT_S", 0.1)
    async with served_run(tmp_path) as url:
        reader, writer = await connected(url)
        writer.write(b"POST /v1/runs/test-run/clients/challenge HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 90\r\n\r\n{")
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"urn:epochal:problem:body-timeout" in answer
        writer.close()


ASK = b"GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost:"], ids=["nothing", "half"])
@pytest.mark.parametrize("asked_before", [False, True])
async def test_connection_without_a_whole_request_head_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, asked_before: bool
) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "HEAD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(epochal.runtime.http.http_server, "KEEP_ALIVE_S", 1)  # what bounds the silence after an answer
    async with served_run(tmp_path) as url, asyncio.timeout(BOUND_S):
        reader, writer = await connected(url)
        if asked_before:
            writer.write(ASK)
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()


async def test_connection_with_an_endless_request_head_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "HEAD_TIMEOUT_S", 2 * BOUND_S)  # it is its size that ends it
    async with served_run(tmp_path) as url, asyncio.timeout(BOUND_S):
        _, writer = await connected(url)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            await write_headers(writer, 100 * MAX_HEAD_BYTES)


async def test_body_that_does_not_end_after_its_answer_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "REST_TIMEOUT_S", 0.2)
    async with served_run(tmp_path) as url, asyncio.timeout(BOUND_S):
        reader, writer = await connected(url)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n{")
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        writer.close()


async def write_headers(writer: asyncio.StreamWriter, count_bytes: int) -> None:
    header = b"X-More: " + b"x" * 9_990 + b"\r\n"
    for _ in range(count_bytes // len(header)):
        writer.write(header)
        await writer.drain()


async def test_request_that_waits_for_longer_than_a_head_may_take_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "HEAD_TIMEOUT_S", 0.1)
    async with served_run(tmp_path) as url, httpx.AsyncClient(base_url=url) as http:
        for _ in range(2):
            version = (await http.get("/v1/runs/test-run")).json()["version"]
            assert (await http.get(f"/v1/runs/test-run?wait_s=0.3&after={version}")).status_code == 304


async def test_request_that_breaks_off_is_counted_and_not_logged_as_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.runtime.http.http_server, "SHORT_BODY_BYTES", 0)
    async with served_run(tmp_path) as url:
        _, writer = await connected(url)
        body = canonical_json({"public_key": "ab" * 32})
        head = b"POST /v1/runs/test-run/clients/challenge HTTP/1.1\r\nHost: [::1]\r\nContent-Length: %d\r\n\r\n" % len(
            body
        )
        writer.write(head + body[:5])
        await writer.drain()
        writer.close()
        async with httpx.AsyncClient(base_url=url) as http:
            await shows(http, '_count{method="POST",route="/v1/runs/{run_id}/clients/challenge",status="4xx"} 1.0')
            assert (await http.post("/v1/runs/test-run/clients/challenge", content=body)).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
