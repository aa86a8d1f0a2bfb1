"""Limits of bandwidth: the bucket against a naive one, and what really passes over sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.runtime.connections.bandwidth import (
    BURST_S,
    MAX_PIECE_BYTES,
    Bandwidth,
    RateLimit,
    limited_to,
    parse_rate,
    present_limits,
    refuse_if_limited,
)
from epochal.runtime.connections.limited_transport import limited
from epochal.runtime.http.aiohttp_transport import AiohttpTransport
from epochal.runtime.http.checked_relay import CheckedRelay
from epochal.runtime.http.http_client import whole_answer
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import S3
from epochal.state.errors import InvalidInput, NotAllowed
from epochal.state.intervals import DataIds
from tests.support.data.open_gate import OpenGate
from tests.support.heavy import need_module
from tests.support.servers.certificates import self_signed
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server
from tests.support.servers.data_server import open_client, serving
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.raw_http import head_of, raw_server

RATE = 4_000_000.0
"""Bytes per second of the limits over sockets."""
BODY_BYTES = 2_400_000
PRECISION = 0.1


@pytest.fixture(autouse=True)
def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@given(
    rate=st.floats(8_000, 1e9),
    asked=st.lists(st.tuples(st.floats(0, 2), st.integers(1, MAX_PIECE_BYTES)), min_size=1, max_size=60),
)
def test_no_time_has_more_than_its_bytes_and_a_burst(rate: float, asked: list[tuple[float, int]]) -> None:
    limit, now_s, passed = RateLimit(rate), 0.0, []
    for pause_s, count in asked:
        now_s += pause_s
        passed.append((now_s + limit.reserve(count, now_s), count))
    for first in range(len(passed)):
        total = 0
        for at_s, count in passed[first:]:
            total += count
            allowed = rate * (at_s - passed[first][0] + BURST_S) + passed[first][1]
            assert total <= allowed * (1 + 1e-9)


@given(rate=st.floats(8_000, 1e9), counts=st.lists(st.integers(1, MAX_PIECE_BYTES), min_size=1, max_size=60))
def test_whoever_asks_at_once_gets_all_of_the_limit_in_order(rate: float, counts: list[int]) -> None:
    limit = RateLimit(rate)
    waits = [limit.reserve(count, 100.0) for count in counts]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(max(0.0, sum(counts) / rate - BURST_S), abs=1e-6)


@pytest.mark.parametrize(("text", "bits"), [("64kbit", 64e3), ("10mbit", 10e6), ("2.5mbit", 2.5e6), ("1gbit", 1e9)])
def test_rate_is_read(text: str, bits: float) -> None:
    assert parse_rate("--upload", text) == bits / 8


@pytest.mark.parametrize(
    "text", ["", "10", "10 mbit", "10MB", "1kbit", "0mbit", "-1mbit", "2000gbit", "٣mbit", "1e3kbit"]
)
def test_other_rate_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_rate("--upload", text)
    assert refused.value.message.startswith(f"--upload {text!r}: allowed: ")


def test_limits_end_with_their_block_and_none_are_none() -> None:
    with limited_to(Bandwidth()):
        assert present_limits() is None
        refuse_if_limited("a library", "leave it")
    with limited_to(Bandwidth(upload=RateLimit(RATE))):
        assert present_limits() is not None
        with pytest.raises(NotAllowed, match="a library moves its bytes where --upload and --download do not reach"):
            refuse_if_limited("a library", "leave it")
    assert present_limits() is None


async def _answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the body of each request, and answer with as many bytes as its path says."""
    while True:
        head = await head_of(reader)
        lengths = [int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length")]
        await reader.readexactly(sum(lengths))
        count = int(head.split(" ")[1].removeprefix("/"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % count + bytes(count))
        await writer.drain()


@asynccontextmanager
async def http_client(trust: ssl.SSLContext, context: ssl.SSLContext | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with raw_server(_answering, context) as port:
        url = f"http{'' if context is None else 's'}://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, transport=AiohttpTransport(trust, None, 4), timeout=30) as client:
            yield client


async def took(*transfers: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that the transfers take beside each other."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.TaskGroup() as group:
        for transfer in transfers:
            group.create_task(transfer())  # type: ignore[arg-type]
    return loop.time() - began_s


def check_rate(elapsed_s: float, total_bytes: int) -> None:
    """The bytes beyond the burst took as long as the limit says, within the precision."""
    assert (total_bytes - RATE * BURST_S) / elapsed_s <= RATE * (1 + PRECISION)
    assert total_bytes / elapsed_s >= RATE * (1 - PRECISION)


def down(client: httpx.AsyncClient, count: int) -> Callable[[], Awaitable[object]]:
    async def transfer() -> None:
        answer = await whole_answer(client, client.build_request("GET", f"/{count}"))
        assert len(answer.content) == count

    return transfer


def up(client: httpx.AsyncClient, count: int) -> Callable[[], Awaitable[object]]:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield bytes(count // 4)

    async def transfer() -> None:
        headers = {"Content-Length": str(count)}
        answer = await whole_answer(client, client.build_request("PUT", "/0", content=pieces(), headers=headers))
        assert answer.status_code == 200

    return transfer


@pytest.mark.parametrize("way", [down, up])
async def test_two_transfers_of_http_share_a_limit(
    way: Callable[[httpx.AsyncClient, int], Callable[[], Awaitable[object]]],
) -> None:
    with limited_to(Bandwidth(**{"download" if way is down else "upload": RateLimit(RATE)})):
        async with http_client(PLAIN) as client:
            elapsed_s = await took(way(client, BODY_BYTES // 2), way(client, BODY_BYTES // 2))
    check_rate(elapsed_s, BODY_BYTES)


@pytest.mark.parametrize("way", [down, up])
async def test_limit_holds_over_tls(
    way: Callable[[httpx.AsyncClient, int], Callable[[], Awaitable[object]]], tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with limited_to(Bandwidth(RateLimit(RATE), RateLimit(RATE))):
        async with http_client(ssl.create_default_context(cafile=certificate), context) as client:
            elapsed_s = await took(way(client, BODY_BYTES))
    check_rate(elapsed_s, BODY_BYTES)


async def test_other_direction_is_not_slowed_down() -> None:
    with limited_to(Bandwidth(upload=RateLimit(8_000))):
        async with http_client(PLAIN) as client:
            assert await took(down(client, BODY_BYTES)) < BODY_BYTES / 8_000 / 10


async def test_data_over_tcp_and_http_share_a_limit() -> None:
    spec = DatasetSpec(2, 1023)
    source, count = DummyDataProvider(spec), BODY_BYTES // 2 // (1023 * 2)
    async with serving(source, OpenGate(), spec=spec) as (_, address), http_client(PLAIN) as client:
        with limited_to(Bandwidth(download=RateLimit(RATE))):
            provider = await open_client(address)
            got: list[np.ndarray] = []

            async def samples() -> None:
                got.append((await provider.get_samples(DataIds(0, count - 1))).input_ids)

            elapsed_s = await took(samples, down(client, BODY_BYTES // 2))
            await provider.aclose()
    check_rate(elapsed_s, got[0].nbytes + BODY_BYTES // 2)
    np.testing.assert_array_equal(got[0], (await source.get_samples(DataIds(0, count - 1))).input_ids)


async def test_relay_of_a_library_keeps_to_the_limit() -> None:
    async with raw_server(_answering) as port:
        with limited_to(Bandwidth(download=RateLimit(RATE))):
            relay = CheckedRelay(None)
        await relay.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", proxy=relay.url, timeout=30) as client:
            elapsed_s = await took(down(client, BODY_BYTES))  # the library's own connection is not limited
        await relay.aclose()
    check_rate(elapsed_s, BODY_BYTES)


async def test_bucket_is_read_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library connects by itself, so that it is led through the relay."""
    need_module("obstore")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    body = np.random.default_rng(1).bytes(BODY_BYTES)
    written = "2023-01-02T10:00:00.000Z"

    async def answer(request: HttpRequest) -> HttpReply:
        if "list-type" in request.query:
            entry = f"<Key>a.bin</Key><LastModified>{written}</LastModified><ETag>1</ETag><Size>{len(body)}</Size>"
            listing = f"<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>"
            return HttpReply(200, listing.encode())
        first, last = request.byte_range() or (0, len(body) - 1)
        headers = {"ETag": "1", "Last-Modified": "Mon, 02 Jan 2023 10:00:00 GMT"}
        return HttpReply(206, body[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{len(body)}"})

    async with http_server(answer) as url:
        with limited_to(Bandwidth(download=RateLimit(RATE))):
            source = await ObjectStoreSource.open(S3(bucket_name="b", endpoint=url), OWNERS)
        into = bytearray(len(body))
        elapsed_s = await took(lambda: source.read_into("a.bin", 0, memoryview(into)))
        await source.aclose()
    assert bytes(into) == body
    check_rate(elapsed_s, BODY_BYTES)


async def test_closing_sends_what_was_written_before() -> None:
    """A request that is left is still sent whole: the server sees all of its bytes, at the limit's pace."""
    seen = asyncio.get_running_loop().create_future()

    async def take_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(await reader.read(-1))

    async with raw_server(take_all) as port:
        with limited_to(Bandwidth(upload=RateLimit(RATE))):
            loop, protocol = asyncio.get_running_loop(), asyncio.Protocol()
            raw, _ = await loop.create_connection(lambda: protocol, "127.0.0.1", port)
            transport = limited(raw, protocol)
        transport.write(bytes(BODY_BYTES // 2))
        transport.close()
        assert transport.is_closing()
        assert len(await seen) == BODY_BYTES // 2
