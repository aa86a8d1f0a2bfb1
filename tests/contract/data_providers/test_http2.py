"""Data over HTTP/2: when it is spoken, with a real nginx, and servers whose streams and connections break."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from data_providers.protocol import CorruptData, SourceUnavailable
from data_providers.sources.http import http2, multiplexing, pool
from data_providers.sources.http.source import HttpOptions, HttpSource
from data_providers.sources.protocol import Wanted, read
from runtime.retry import RetryPolicy
from tests.support.bounds import BOUND_S
from tests.support.certificates import self_signed
from tests.support.data_http_client import ONE_TRY
from tests.support.http2_server import Asked, Behave, SingleRanges, serving
from tests.support.nginx import nginx
from tests.support.raw_http import proxy, raw_server

DATA = bytes(number * number % 251 for number in range(300_000))
SIZE = 40_000
RETRIES = HttpOptions(retry=RetryPolicy(attempts=6, first_delay_s=0.001, max_delay_s=0.001))


@pytest.fixture(autouse=True)
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A server's certificate, which the client trusts, and its key; every server is far enough away."""
    found = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(found[0]))
    monkeypatch.setattr(multiplexing, "FAR_S", 0.0)
    pool.trusted.cache_clear()
    yield found
    pool.trusted.cache_clear()


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
    server: SingleRanges, context: ssl.SSLContext, options: HttpOptions = ONE_TRY
) -> AsyncIterator[HttpSource]:
    """A source that knows of the server that it sends one range at a time."""
    async with serving(server, context) as port:
        source = await HttpSource.open([f"https://127.0.0.1:{port}/a.bin"], options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multiplexing, "FAR_S", BOUND_S)
            await learn(source)
        try:
            yield source
        finally:
            await source.aclose()


async def _honest(asked: Asked) -> None:
    asked.all()


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
    server = SingleRanges(DATA, _honest)
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
    server = SingleRanges(DATA, _honest)
    async with opened(server, context) as source:
        assert await read_all(source) == DATA
    assert not server.connections_http2


async def test_server_that_does_not_choose_http2_is_asked_over_http1(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA)
    async with opened(server, context) as source:
        assert await read_all(source) == DATA
        assert not source._requester.pool.multiplexes(source._requester._target(source._by_name["a.bin"].url).origin)


async def test_own_headers_are_sent_over_http2(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA, _honest)
    options = HttpOptions({"Authorization": "Bearer x", "Keep-Alive": "1"}, RetryPolicy(attempts=1))
    async with opened(server, context, options) as source:
        await read(source, "a.bin", 5, 10)
    (fields,) = server.fields
    assert fields["authorization"] == "Bearer x"
    assert fields["accept-encoding"] == "identity"
    assert fields[":path"] == "/a.bin"
    assert "keep-alive" not in fields


async def test_http2_is_spoken_through_a_proxy(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    server = SingleRanges(DATA, _honest)
    async with raw_server(proxy(asked)) as proxy_port:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        async with opened(server, context) as source:
            before = len(asked)
            assert await read_all(source) == DATA
        assert asked[before:]
    assert server.connections_http2 == 1


# ---------------------------------------------------------------- what breaks, and is continued


async def _resets_in_the_middle(asked: Asked) -> None:
    if asked.stop - asked.first <= SIZE // 2:
        return asked.all()
    asked.head()
    asked.body(asked.first, asked.first + SIZE // 2, ends=False)
    return asked.connection.h2.reset_stream(asked.stream, ErrorCodes.INTERNAL_ERROR)


async def _refuses_first(asked: Asked) -> None:
    if asked.attempt > 1:
        return asked.all()
    return asked.connection.h2.reset_stream(asked.stream, ErrorCodes.REFUSED_STREAM)


async def _says_goodbye_in_the_middle(asked: Asked) -> None:
    if asked.stop - asked.first <= SIZE // 2:
        return asked.all()
    asked.head()
    asked.body(asked.first, asked.first + SIZE // 2, ends=False)
    asked.connection.h2.close_connection(ErrorCodes.NO_ERROR, last_stream_id=asked.stream)
    asked.connection.flush()
    raise ConnectionError


async def _hangs_up_in_the_middle(asked: Asked) -> None:
    if asked.stop - asked.first <= SIZE // 2:
        return asked.all()
    asked.head()
    asked.body(asked.first, asked.first + SIZE // 2, ends=False)
    asked.connection.flush()
    await asked.connection.writer.drain()
    raise ConnectionError


async def _wants_http1(asked: Asked) -> None:
    asked.connection.h2.reset_stream(asked.stream, ErrorCodes.HTTP_1_1_REQUIRED)


@pytest.mark.parametrize("behave", [_resets_in_the_middle, _says_goodbye_in_the_middle, _hangs_up_in_the_middle])
async def test_answer_that_breaks_off_is_continued(context: ssl.SSLContext, behave: Behave) -> None:
    server = SingleRanges(DATA, behave)
    async with opened(server, context, RETRIES) as source:
        assert await read(source, "a.bin", 0, SIZE) == DATA[:SIZE]
        assert await read_all(source) == DATA
    assert server.fields[1]["range"] == f"bytes={SIZE // 2}-{SIZE - 1}", "what came is not asked for again"


@pytest.mark.parametrize("behave", [_refuses_first, _wants_http1])
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


def _frames(frame: bytes) -> Behave:
    async def behave(asked: Asked) -> None:
        for _ in range(100):
            asked.connection.writer.write(frame * 100)
            await asked.connection.writer.drain()

    return behave


def _answers(length: int | None = None, extra: int = 0, **fields: str) -> Behave:
    async def behave(asked: Asked) -> None:
        asked.head(content_length="" if length is None else str(length), **fields)
        asked.body(asked.first, asked.stop + extra)

    return behave


async def _unfolds(asked: Asked) -> None:
    asked.connection.h2.send_headers(asked.stream, [(":status", "206"), *[("x", "y" * 2000)] * 100])


PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
EMPTY_DATA = bytes([0, 0, 0, 0, 0, 0, 0, 0, 1])
UNKNOWN = bytes([0, 0, 0, 99, 0, 0, 0, 0, 1])
LARGE = bytes([255, 255, 255, 0, 0, 0, 0, 0, 1])
ENDLESS_GOODBYE = bytes([255, 255, 255, 7, 0, 0, 0, 0, 0])

BAD = {
    "a flood of PING": (_frames(PING), "not HTTP/2: more than 1000 frames"),
    "a flood of SETTINGS": (_frames(SETTINGS), "not HTTP/2: more than 1000 frames"),
    "a flood of unknown frames": (_frames(UNKNOWN), "not HTTP/2: more than 1000 frames"),
    "a flood of empty DATA": (_frames(EMPTY_DATA), "not HTTP/2"),
    "a frame of 16 MiB": (_frames(LARGE), "not HTTP/2: a frame of 16777215 bytes"),
    "a goodbye without an end": (_frames(ENDLESS_GOODBYE), "not HTTP/2: a frame of 16777215 bytes"),
    "no frames": (_frames(b"HTTP/1.1 200 OK\r\n\r\n"), "not HTTP/2"),
    "more than its length": (_answers(10), "not HTTP/2"),
    "less than its length": (_answers(SIZE + 1), "more bytes than|not HTTP/2"),
    "a length of many digits": (_answers(int("9" * 30)), "not HTTP/2"),
    "2^63 bytes": (_answers(2**63), "not HTTP/2"),
    "more than its range": (_answers(extra=100), "sent more bytes than the 40000"),
    "less than its range": (_answers(extra=-100), "sent 39900 bytes where it announced 40000"),
    "another range": (_answers(content_range="bytes 5-9/300000"), r"answered bytes \[5, 10\)"),
    "a long head": (_answers(x="x" * 30_000), "not HTTP/2: a head of more than 16384 bytes"),
    "a head that unfolds": (_unfolds, "not HTTP/2"),
    "a secret in a bad head": (_answers(location=" https://secret "), "not HTTP/2"),
    "trouble": (_answers(status="503"), "answered 503 Service Unavailable"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_answer_is_unavailable_and_shows_no_secret(context: ssl.SSLContext, name: str) -> None:
    behave, message = BAD[name]
    async with opened(SingleRanges(DATA, behave), context) as source, asyncio.timeout(BOUND_S):
        with pytest.raises(SourceUnavailable, match=message) as refused:
            await read(source, "a.bin", 0, SIZE)
    assert "secret" not in str(refused.value)


async def test_server_that_fails_over_http2_is_asked_over_http1(context: ssl.SSLContext) -> None:
    server = SingleRanges(DATA, _frames(PING))
    async with opened(server, context, RETRIES) as source:
        assert await read(source, "a.bin", 0, SIZE) == DATA[:SIZE]
    assert server.connections_http2 == multiplexing.MAX_FAILURES


async def test_file_that_changed_is_corrupt_over_http2(context: ssl.SSLContext) -> None:
    async with opened(SingleRanges(DATA, _answers(etag='"second"')), context, RETRIES) as source:
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
        monkeypatch.setattr(pool, "CONNECT_TIMEOUT_S", BOUND_S if sends_settings else 0.5)
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
