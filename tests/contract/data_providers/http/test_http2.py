"""Data over HTTP/2: when it is spoken, with a real nginx, and servers whose streams and connections break."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from h2.settings import SettingCodes

from epochal.data_providers.protocol import CorruptData, SourceUnavailable
from epochal.data_providers.sources.byte_source import Wanted, read
from epochal.data_providers.sources.http import connection_pool, http2, multiplexing, requester
from epochal.data_providers.sources.http.source import HttpOptions, HttpSource
from epochal.runtime.retry import RetryPolicy
from tests.support.bounds import BOUND_S
from tests.support.data.data_http_client import ONE_TRY
from tests.support.servers.certificates import self_signed
from tests.support.servers.http2_faults import (
    BAD,
    PING,
    SIZE,
    answers,
    frames,
    hangs_up_in_the_middle,
    honest,
    refuses_first,
    resets_in_the_middle,
    says_goodbye_in_the_middle,
    wants_http1,
)
from tests.support.servers.http2_server import Asked, Behave, SingleRanges, serving
from tests.support.servers.nginx import nginx
from tests.support.servers.raw_http import head_of, proxy, raw_server

DATA = bytes(number * number % 251 for number in range(300_000))
RETRIES = HttpOptions(retry=RetryPolicy(attempts=6, first_delay_s=0.001, max_delay_s=0.001))


@pytest.fixture(autouse=True)
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A server's certificate, which the client trusts, and its key; every server is far enough away."""
    found = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(found[0]))
    monkeypatch.setattr(multiplexing, "FAR_S", 0.0)
    connection_pool.trusted.cache_clear()
    yield found
    connection_pool.trusted.cache_clear()


@pytest.fixture
def context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    found.load_cert_chain(*certificate)
    return found


async def read_all(source: HttpSource, size: int = SIZE) -> bytes:
    """Every byte of the file, in ranges of this size."""
    into = bytearray(len(DATA))
    async with asyncio.timeout(BOUND_S):
        await source.read_many_into(
            [Wanted("a.bin", start, memoryview(into)[start : start + size]) for start in range(0, len(into), size)]
        )
    return bytes(into)


async def learn(source: HttpSource) -> None:
    """Find out that the server sends one range at a time."""
    await source.read_many_into(
        [Wanted("a.bin", 0, memoryview(bytearray(2))), Wanted("a.bin", 9, memoryview(bytearray(2)))]
    )


@asynccontextmanager
async def opened(
    server: SingleRanges,
    context: ssl.SSLContext,
    options: HttpOptions = ONE_TRY,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[HttpSource]:
    """A source that knows of the server that it sends one range at a time."""
    async with serving(server, context) as port:
        options = replace(options, headers={f"127.0.0.1:{port}": headers})
        source = await HttpSource.open([f"https://127.0.0.1:{port}/a.bin"], options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multiplexing, "FAR_S", BOUND_S)
            await learn(source)
        try:
            yield source
        finally:
            await source.aclose()


# ---------------------------------------------------------------- when it is spoken


async def test_nginx_with_single_ranges_is_asked_over_http2(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.bin").write_bytes(DATA)
    with nginx(
        tmp_path / "nginx", tmp_path / "root", max_ranges=1, certificate=certificate, settings="keepalive_requests 40;"
    ) as server:
        source = await HttpSource.open([f"{server.url}/data/a.bin"], ONE_TRY)
        await learn(source)
        spoken_first = server.protocols()
        for _ in range(3):  # nginx says goodbye every 40 requests, which costs no attempt
            assert await read_all(source, 3_000) == DATA
        await source.aclose()
        later = server.protocols()[len(spoken_first) :]
    assert "HTTP/1.1" in spoken_first
    assert later.count("HTTP/2.0") >= 300
    assert later.count("HTTP/1.1") <= 2, "those that ask for the log alone"


async def test_nginx_with_several_ranges_is_asked_over_http1(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.bin").write_bytes(DATA)
    with nginx(tmp_path / "nginx", tmp_path / "root", certificate=certificate) as server:
        source = await HttpSource.open([f"{server.url}/data/a.bin"], ONE_TRY)
        await learn(source)
        assert await read_all(source) == DATA
        await source.aclose()
        assert set(server.protocols()) == {"HTTP/1.1"}


async def test_single_ranges_are_found_out_over_http1(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA, honest)
    async with serving(server, context) as port:
        source = await HttpSource.open([f"https://127.0.0.1:{port}/a.bin"], ONE_TRY)
        assert await read(source, "a.bin", 0, 10) == DATA[:10]
        assert not server.asked_http2
        await learn(source)
        before = server.asked_http1
        assert await read_all(source) == DATA
        await source.aclose()
    assert (server.asked_http1, server.connections_http2) == (before, 1)
    assert server.asked_http2 >= len(DATA) // SIZE


async def test_near_server_is_asked_over_http1(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplexing, "FAR_S", BOUND_S)
    server = SingleRanges(DATA, honest)
    async with opened(server, context) as source:
        assert await read_all(source) == DATA
    assert not server.connections_http2


async def test_server_that_does_not_choose_http2_is_asked_over_http1(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA)
    async with opened(server, context) as source:
        assert await read_all(source) == DATA
        assert not source._requester.pool.multiplexes(source._requester._target(source._by_name["a.bin"].url).origin)


async def test_own_headers_are_sent_over_http2(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA, honest)
    headers = {"Authorization": "Bearer x", "Keep-Alive": "1"}
    async with opened(server, context, headers=headers) as source:
        await read(source, "a.bin", 5, 10)
    (fields,) = server.fields
    assert fields["authorization"] == "Bearer x"
    assert fields["accept-encoding"] == "identity"
    assert fields[":path"] == "/a.bin"
    assert "keep-alive" not in fields


async def test_http2_is_spoken_through_a_proxy(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    server = SingleRanges(DATA, honest)
    async with raw_server(proxy(asked)) as proxy_port:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        async with opened(server, context) as source:
            before = len(asked)
            assert await read_all(source) == DATA
        assert asked[before:]
    assert server.connections_http2 == 1


async def test_http2_is_spoken_where_a_server_redirects_to(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA, honest)
    async with serving(server, context) as port:

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await head_of(reader)
            place = f"https://127.0.0.1:{port}/a.bin?secret"
            writer.write(f"HTTP/1.1 302 x\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())

        options = HttpOptions({f"127.0.0.1:{port}": {"Authorization": "Bearer x"}}, RetryPolicy(attempts=1))
        async with raw_server(redirect) as home:
            source = await HttpSource.open([f"http://127.0.0.1:{home}/a.bin"], options)
            await learn(source)
            assert await read_all(source) == DATA
            await source.aclose()
    assert server.connections_http2 == 1
    assert not [fields for fields in server.fields if "authorization" in fields]


async def test_connection_that_was_idle_for_long_is_not_used(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexing, "IDLE_S", 0.0)
    server = SingleRanges(DATA, honest)
    async with opened(server, context) as source:
        for _ in range(2):
            assert await read(source, "a.bin", 0, SIZE) == DATA[:SIZE]
    assert server.connections_http2 == 2


# ---------------------------------------------------------------- what breaks, and is continued


@pytest.mark.parametrize("behave", [resets_in_the_middle, says_goodbye_in_the_middle, hangs_up_in_the_middle])
async def test_answer_that_breaks_off_is_continued(context: ssl.SSLContext, behave: Behave) -> None:
    server = SingleRanges(DATA, behave)
    async with opened(server, context, RETRIES) as source:
        assert await read(source, "a.bin", 0, SIZE) == DATA[:SIZE]
        assert await read_all(source) == DATA
    assert server.fields[1]["range"] == f"bytes={SIZE // 2}-{SIZE - 1}", "what came is not asked for again"


@pytest.mark.parametrize("behave", [refuses_first, wants_http1])
async def test_stream_that_was_not_begun_costs_no_attempt(context: ssl.SSLContext, behave: Behave) -> None:
    async with opened(SingleRanges(DATA, behave), context, ONE_TRY) as source:
        assert await read(source, "a.bin", 0, SIZE) == DATA[:SIZE]


async def test_goodbye_lets_the_streams_before_it_end(context: ssl.SSLContext) -> None:
    async def behave(asked: Asked) -> None:
        asked.head()
        asked.body(asked.first, asked.first + 100, ends=False)
        side = asked.connection
        side.flush()
        goodbye = bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + asked.stream.to_bytes(4, "big") + bytes(4)
        for byte in goodbye:
            side.writer.write(bytes([byte]))
            await side.writer.drain()
        asked.body(asked.first + 100, asked.stop)

    server = SingleRanges(DATA, behave)
    async with opened(server, context, ONE_TRY) as source:
        for start in (0, SIZE):
            assert await read(source, "a.bin", start, start + SIZE) == DATA[start : start + SIZE]
    assert server.connections_http2 == 2


async def test_one_bad_answer_leaves_the_other_streams_alone(context: ssl.SSLContext) -> None:
    async def behave(asked: Asked) -> None:
        if asked.first == SIZE and asked.attempt == 1:
            asked.head(content_range=f"bytes 7-{SIZE}/{len(DATA)}", content_length="")
            asked.body(0, SIZE, ends=False)
        else:
            asked.all()

    server = SingleRanges(DATA, behave)
    async with opened(server, context, RETRIES) as source:
        assert await read_all(source) == DATA
    assert server.connections_http2 == 1


async def test_nothing_is_written_after_a_read_was_cancelled(context: ssl.SSLContext) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def behave(asked: Asked) -> None:
        if asked.first:
            return asked.all()
        asked.head()
        asked.body(0, 100, ends=False)
        asked.connection.flush()
        begun.set()
        await goes_on.wait()
        return asked.body(100, SIZE)

    into = bytearray(SIZE)
    async with opened(SingleRanges(DATA, behave), context) as source:
        reading = asyncio.ensure_future(source.read_into("a.bin", 0, memoryview(into)))
        async with asyncio.timeout(BOUND_S):
            await begun.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            goes_on.set()
            assert await read(source, "a.bin", SIZE, 2 * SIZE) == DATA[SIZE : 2 * SIZE]
    assert not any(into[100:])


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", BAD)
async def test_bad_answer_is_unavailable_and_shows_no_secret(context: ssl.SSLContext, name: str) -> None:
    behave, message = BAD[name]
    async with opened(SingleRanges(DATA, behave), context) as source, asyncio.timeout(BOUND_S):
        with pytest.raises(SourceUnavailable, match=message) as refused:
            await read(source, "a.bin", 0, SIZE)
    assert "secret" not in str(refused.value)


async def test_server_that_fails_over_http2_is_asked_over_http1(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA, frames(PING))
    async with opened(server, context, RETRIES) as source:
        assert await read(source, "a.bin", 0, SIZE) == DATA[:SIZE]
    assert server.connections_http2 == multiplexing.MAX_FAILURES


async def test_requests_that_wait_for_a_connection_fail_together(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SingleRanges(DATA, honest, sends_settings=False)
    async with opened(server, context, RETRIES) as source:
        monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 0.5)
        assert await read_all(source) == DATA
    assert server.connections_http2 == multiplexing.MAX_FAILURES


async def test_file_that_changed_is_corrupt_over_http2(context: ssl.SSLContext) -> None:
    async with opened(SingleRanges(DATA, answers(etag='"second"')), context, RETRIES) as source:
        with pytest.raises(CorruptData, match="changed"):
            await read(source, "a.bin", 0, SIZE)


async def _never(asked: Asked) -> None:
    return None


@pytest.mark.parametrize(
    ("settings", "sends_settings"), [({}, True), ({SettingCodes.MAX_CONCURRENT_STREAMS: 0}, True), ({}, False)]
)
async def test_server_that_never_answers_or_opens_is_given_up(
    context: ssl.SSLContext,
    settings: dict[SettingCodes, int],
    sends_settings: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SingleRanges(DATA, _never, settings, sends_settings)
    async with opened(server, context) as source, asyncio.timeout(BOUND_S):
        monkeypatch.setattr(http2, "SILENCE_TIMEOUT_S", 0.05)
        monkeypatch.setattr(requester, "ANSWER_TIMEOUT_S", 2 * BOUND_S)  # it is not this limit that gives it up
        monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 2 * BOUND_S if sends_settings else 0.5)
        with pytest.raises(SourceUnavailable, match="in time"):
            await read(source, "a.bin", 0, SIZE)


async def test_streams_at_a_time_are_as_many_as_the_server_allows(context: ssl.SSLContext) -> None:
    held: list[Asked] = []

    async def behave(asked: Asked) -> None:
        held.append(asked)
        if len(held) == 2:
            for one in held:
                one.all()
            held.clear()

    server = SingleRanges(DATA, behave, {SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    async with opened(server, context) as source:
        assert await read_all(source, len(DATA) // 12) == DATA
    assert (server.asked_http2, server.connections_http2) == (12, 1)
