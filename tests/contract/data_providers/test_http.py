"""Data over HTTP against servers on a bad day: each its own clear error, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import data_providers.sources.http.answers
from data_providers.local import LocalDataProvider
from data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from data_providers.ranged import RangedDataProvider
from data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache, CachedSource
from data_providers.sources.http.answers import MAX_WHOLE_FILE_BYTES
from data_providers.sources.http.source import (
    HEADERS_VARIABLE,
    MAX_CONNECTIONS,
    RETRY,
    HttpOptions,
    HttpSource,
    file_names,
)
from data_providers.sources.protocol import MAX_CONCURRENT_READS, read
from runtime.retry import RetryPolicy
from state.errors import DataError, EpochalError, InvalidInput
from state.intervals import DataIds
from tests.support.data_files import SEED
from tests.support.data_http import Answer, FileServer, HttpReply, HttpRequest, http_server

SPEC = DatasetSpec(2, 64)
TOKENS = np.arange(64 * 400, dtype="<u2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path


async def no_wait(seconds: float) -> None:
    """Time that passes at once."""


ONE_TRY = HttpOptions(retry=RetryPolicy(attempts=1))
FOUR_TRIES = HttpOptions(retry=replace(RETRY, sleep=no_wait))


async def open_url(url: str, spec: DatasetSpec = SPEC, options: HttpOptions = ONE_TRY) -> RangedDataProvider:
    return await RangedDataProvider.open(await HttpSource.open([url], options), spec)


@asynccontextmanager
async def opened(
    answer: Answer, spec: DatasetSpec = SPEC, options: HttpOptions = ONE_TRY
) -> AsyncIterator[RangedDataProvider]:
    async with http_server(answer) as url:
        provider = await open_url(f"{url}/a.bin", spec, options)
        try:
            yield provider
        finally:
            await provider.aclose()


class Faulty:
    """Serves a folder; `fault` may change each reply once it is set."""

    def __init__(self, folder: Path) -> None:
        self.files = FileServer(folder)
        self.fault: Callable[[HttpReply], HttpReply] | None = None

    async def __call__(self, request: HttpRequest) -> HttpReply:
        reply = await self.files(request)
        return reply if self.fault is None else self.fault(reply)


def with_header(reply: HttpReply, name: str, value: str) -> HttpReply:
    return replace(reply, headers={**reply.headers, name: value})


FAULTS: dict[str, tuple[Callable[[HttpReply], HttpReply], type[DataError]]] = {
    "404": (lambda reply: HttpReply(404), Rejected),
    "403": (lambda reply: HttpReply(403), Rejected),
    "400": (lambda reply: HttpReply(400), Rejected),
    "500": (lambda reply: HttpReply(500), SourceUnavailable),
    "503": (lambda reply: HttpReply(503, headers={"Retry-After": "7"}), SourceUnavailable),
    "429": (lambda reply: HttpReply(429), SourceUnavailable),
    "redirects for ever": (lambda reply: HttpReply(302, headers={"Location": "/a.bin"}), Rejected),
    "redirects elsewhere": (lambda reply: HttpReply(302, headers={"Location": "ftp://x/a.bin"}), Rejected),
    "too few bytes": (
        lambda reply: replace(reply, body=reply.body[:-3], announced_bytes=len(reply.body)),
        SourceUnavailable,
    ),
    "fewer bytes than the range": (lambda reply: replace(reply, body=reply.body[:-3]), SourceUnavailable),
    "more bytes than the range": (lambda reply: replace(reply, body=reply.body + b"xxx"), SourceUnavailable),
    "another range": (lambda reply: with_header(reply, "Content-Range", "bytes 5-20/51200"), SourceUnavailable),
    "endless range": (
        lambda reply: with_header(reply, "Content-Range", f"bytes 0-{2**40}/{2**41}"),
        CorruptData,
    ),
    "range without range": (lambda reply: replace(reply, headers={}), Rejected),
    "range of nonsense": (lambda reply: with_header(reply, "Content-Range", "bytes x"), Rejected),
    "compressed": (lambda reply: with_header(reply, "Content-Encoding", "gzip"), Rejected),
    "another etag": (lambda reply: with_header(reply, "ETag", '"new"'), CorruptData),
    "another size": (lambda reply: with_header(reply, "Content-Range", "bytes 0-127/51202"), CorruptData),
    "whole large file": (
        lambda reply: HttpReply(200, b"", announced_bytes=MAX_WHOLE_FILE_BYTES + 1, hangs=True),
        Rejected,
    ),
}


@pytest.mark.parametrize(("fault", "error"), FAULTS.values(), ids=FAULTS)
async def test_http_fault_is_its_own_error_and_leaves_the_provider_usable(
    fault: Callable[[HttpReply], HttpReply], error: type[DataError], folder: Path
) -> None:
    answer = Faulty(folder)
    async with opened(answer) as provider:
        answer.fault = fault
        with pytest.raises(error, match=r"a\.bin") as raised:
            await provider.get_samples(DataIds(0, 0))
        assert type(raised.value) is error
        answer.fault = None
        assert (await provider.get_samples(DataIds(0, 0))).input_ids.tolist() == TOKENS[:64].tolist()


async def test_http_503_says_when_to_try_again(folder: Path) -> None:
    answer = Faulty(folder)
    async with opened(answer) as provider:
        answer.fault = FAULTS["503"][0]
        with pytest.raises(SourceUnavailable) as raised:
            await provider.get_samples(DataIds(0, 0))
    assert raised.value.retry
    assert raised.value.context["retry_after_s"] == 7.0


async def test_http_hanging_server_is_unavailable_in_bounded_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Faulty(folder)
    async with opened(answer) as provider:
        monkeypatch.setattr(data_providers.sources.http.answers, "ANSWER_TIMEOUT_S", 0.05)
        answer.fault = lambda reply: replace(reply, body=reply.body[:10], announced_bytes=len(reply.body), hangs=True)
        with pytest.raises(SourceUnavailable, match="in time"):
            await provider.get_samples(DataIds(0, 0))


async def test_http_server_that_is_away_is_unavailable(folder: Path) -> None:
    async with http_server(FileServer(folder)) as url:
        provider = await open_url(f"{url}/a.bin")
    with pytest.raises(SourceUnavailable):
        await provider.get_samples(DataIds(0, 0))
    await provider.aclose()
    with pytest.raises(SourceUnavailable):
        await open_url(f"{url}/a.bin")


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://127.0.0.1/a.bin", Rejected),
        ("http://[::1/a.bin", InvalidInput),
        ("http://127.0.0.1:99999/a.bin", Rejected),
        ("http://xn--/a.bin", Rejected),
    ],
)
async def test_http_url_that_cannot_be_asked_is_refused(url: str, error: type[EpochalError]) -> None:
    with pytest.raises(error):
        await open_url(url)


@pytest.mark.parametrize("target", ["http://127.0.0.1:99999/a.bin", "http://127.0.0.1:-1/a.bin", "http://xn--/a.bin"])
async def test_http_redirect_to_what_cannot_be_asked_is_a_data_error(target: str) -> None:
    async def redirect(request: HttpRequest) -> HttpReply:
        return HttpReply(302, headers={"Location": target})

    async with http_server(redirect) as url:
        with pytest.raises(DataError):
            await open_url(f"{url}/a.bin")


async def test_http_url_of_no_known_format_is_corrupt_and_says_which_are_read(folder: Path) -> None:
    (folder / "tokens").write_bytes(TOKENS.tobytes())
    async with http_server(FileServer(folder)) as url:
        with pytest.raises(
            CorruptData, match=r"/tokens holds no token files \(\.bin, \.ds, \.npy, or an MDS index\.json\)"
        ):
            await open_url(f"{url}/tokens?key=secret")


async def test_http_small_file_from_a_server_without_ranges_is_read(folder: Path) -> None:
    async def whole(request: HttpRequest) -> HttpReply:
        return HttpReply(200, TOKENS.tobytes())

    async with opened(whole) as provider:
        assert (await provider.get_samples(DataIds(7, 8))).input_ids.tolist() == TOKENS[7 * 64 : 9 * 64].tolist()


async def test_http_truncated_file_is_corrupt(folder: Path) -> None:
    async with opened(FileServer(folder)) as provider:
        (folder / "a.bin").write_bytes(TOKENS[:100].tobytes())
        with pytest.raises(CorruptData, match="changed"):
            await provider.get_samples(DataIds(300, 310))


async def test_http_request_for_neighbours_is_one_range(folder: Path) -> None:
    files = FileServer(folder)
    async with opened(files) as provider:
        files.requests.clear()
        await provider.get_samples(DataIds(10, 40))
    assert [request.byte_range() for request in files.requests] == [(10 * 128, 41 * 128 - 1)]


async def test_http_large_request_comes_in_parts_under_the_limit_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_bytes = 2**20
    monkeypatch.setattr("data_providers.ranges.MAX_RANGE_BYTES", range_bytes)
    spec = DatasetSpec(2, 2**17)
    tokens = np.arange(10 * range_bytes // 2, dtype=np.uint32).astype("<u2")
    tokens.tofile(tmp_path / "a.bin")
    files, active, most_active, crowded = FileServer(tmp_path), 0, 0, asyncio.Event()

    async def answer(request: HttpRequest) -> HttpReply:
        nonlocal active, most_active
        active += 1
        most_active = max(most_active, active)
        if active == MAX_CONCURRENT_READS:
            crowded.set()
        if len(files.requests):  # all but the first look at the file wait for each other
            await crowded.wait()
        active -= 1
        return await files(request)

    async with opened(answer, spec) as provider, asyncio.timeout(20):
        batch = await provider.get_samples(DataIds(0, provider.sequence_count - 1))
        assert np.array_equal(batch.input_ids, tokens)
    assert len(files.requests) == 1 + 10
    assert most_active == MAX_CONCURRENT_READS


async def test_http_shuffled_requests_take_few_ranges(tmp_path: Path) -> None:
    spec = DatasetSpec(2, 4, SEED)
    np.zeros(4 * 16 * 2048, "<u2").tofile(tmp_path / "a.bin")
    files = FileServer(tmp_path)
    async with opened(files, spec) as provider:
        assert provider.order.spec == spec
        files.requests.clear()
        await provider.get_samples(DataIds(0, 255))
    assert len(files.requests) <= 17


async def test_http_has_the_fingerprint_of_the_local_file(folder: Path) -> None:
    async with opened(FileServer(folder)) as provider:
        assert provider.fingerprint == LocalDataProvider.open(folder, SPEC).fingerprint


async def test_http_answer_that_fails_ends_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_providers.ranges.MAX_RANGE_BYTES", 128)
    monkeypatch.setattr("data_providers.ranges.MAX_GAP_BYTES", -1)
    calm = FileServer(folder)

    async def answer(request: HttpRequest) -> HttpReply:
        if request.byte_range() == (0, 0):
            return await calm(request)
        if request.byte_range() == (0, 127):
            return HttpReply(403)
        return HttpReply(206, announced_bytes=128, hangs=True)

    async with opened(answer) as provider, asyncio.timeout(5):
        with pytest.raises(Rejected):
            await provider.get_samples(DataIds(0, 4))


def broken_after(count: int) -> Callable[[HttpReply], HttpReply]:
    """Answers that break off after so many bytes."""
    return lambda reply: replace(reply, body=reply.body[:count], announced_bytes=len(reply.body))


async def test_http_source_is_usable_after_many_reads_are_cancelled_at_once(folder: Path) -> None:
    async with http_server(FileServer(folder)) as url:
        source = await HttpSource.open([f"{url}/a.bin"], ONE_TRY)
        for turns in range(4):  # of the event loop, until the reads are cancelled
            async with asyncio.TaskGroup() as group:
                reads = [group.create_task(read(source, "a.bin", 0, 100)) for _ in range(3 * MAX_CONNECTIONS)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for waiting in reads:
                    waiting.cancel()
        async with asyncio.timeout(10):
            assert await read(source, "a.bin", 0, 100) == TOKENS[:50].tobytes()
        await source.aclose()


async def test_http_broken_body_is_continued_where_it_broke(folder: Path) -> None:
    answer = Faulty(folder)
    async with opened(answer, options=FOUR_TRIES) as provider:
        answer.fault, answer.files.requests = broken_after(50), []
        assert (await provider.get_samples(DataIds(3, 4))).input_ids.tolist() == TOKENS[3 * 64 : 5 * 64].tolist()
    begin, last = 3 * 128, 5 * 128 - 1
    ranges = [request.byte_range() for request in answer.files.requests]
    assert ranges == [(begin + 50 * number, last) for number in range(6)]


async def test_http_source_that_fails_in_passing_is_asked_again_within_the_bound(folder: Path) -> None:
    answer, left = Faulty(folder), 3

    def fail_three_times(reply: HttpReply) -> HttpReply:
        nonlocal left
        left -= 1
        return HttpReply(500) if left >= 0 else reply

    async with opened(answer, options=FOUR_TRIES) as provider:
        answer.fault = fail_three_times
        assert (await provider.get_samples(DataIds(0, 0))).sample_count == 1
        left = 4
        with pytest.raises(SourceUnavailable, match="500"):
            await provider.get_samples(DataIds(0, 0))
        assert left == 0, "asked four times and no more"


async def test_http_file_that_changes_between_two_parts_of_a_body_is_corrupt(folder: Path) -> None:
    answer = Faulty(folder)

    def break_and_change(reply: HttpReply) -> HttpReply:
        answer.fault = lambda reply: with_header(reply, "ETag", '"new"')
        return broken_after(10)(reply)

    async with opened(answer, options=FOUR_TRIES) as provider:
        answer.fault = break_and_change
        with pytest.raises(CorruptData, match="changed"):
            await provider.get_samples(DataIds(0, 3))


@pytest.mark.parametrize(
    ("asked", "waits"), [("3", [3.0, 3.0, 3.0]), ("900", [30.0, 30.0, 30.0]), (None, [0.25, 0.5, 1.0])]
)
async def test_http_retries_wait_as_long_as_the_server_asks_and_no_longer_than_the_bound(
    folder: Path, asked: str | None, waits: list[float]
) -> None:
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)

    answer = Faulty(folder)
    options = HttpOptions(retry=replace(RETRY, sleep=note, jitter=lambda: 1.0))
    async with opened(answer, options=options) as provider:
        answer.fault = lambda reply: HttpReply(503, headers={} if asked is None else {"Retry-After": asked})
        with pytest.raises(SourceUnavailable):
            await provider.get_samples(DataIds(0, 0))
    assert waited == waits


async def test_http_headers_from_the_environment_go_to_the_locations_servers_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADERS_VARIABLE, '{"Authorization": "Bearer secret", "X-Key": "secret"}')
    home, abroad = FileServer(folder), FileServer(folder)
    async with http_server(abroad) as other_url:

        async def redirect(request: HttpRequest) -> HttpReply:
            await home(request)
            return HttpReply(302, headers={"Location": f"{other_url}/a.bin"})

        async with http_server(redirect) as url:
            provider = await RangedDataProvider.open(await HttpSource.open([f"{url}/a.bin"]), SPEC)
            await provider.get_samples(DataIds(0, 0))
            await provider.aclose()
    assert all(request.headers["x-key"] == "secret" for request in home.requests)
    assert abroad.requests
    assert not [
        request for request in abroad.requests if "x-key" in request.headers or "authorization" in request.headers
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Bearer secret",
        "[1]",
        '{"a": 1}',
        '{"a": " b"}',
        '{"a": "b\\n"}',
        '{"a": "é"}',
        '{"a b": "c"}',
        '{"": "c"}',
        '{"é": "c"}',
    ],
)
def test_http_headers_variable_with_something_else_is_refused_without_repeating_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADERS_VARIABLE, text)
    with pytest.raises(InvalidInput, match=HEADERS_VARIABLE) as refused:
        HttpOptions.from_environment()
    assert text not in str(refused.value)


async def test_http_error_shows_no_credentials(folder: Path) -> None:
    async with http_server(FileServer(folder)) as url:
        with pytest.raises(Rejected) as refused:
            await open_url(f"{url}/missing.bin?key=secret".replace("http://", "http://user:secret@"))
    assert "secret" not in str(refused.value) + str(refused.value.context)
    assert "missing.bin" in str(refused.value)


@pytest.mark.parametrize("url", ["http://user:secret@[::1/a.bin?key=secret", "http://user:secret/secret@h/a.bin"])
def test_malformed_url_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        file_names(["http://h/b.bin", url])
    assert "secret" not in str(refused.value) + str(refused.value.context)
    assert "URL 2 of 2" in str(refused.value)


@pytest.mark.parametrize("has_etag", [False, True])
async def test_cache_tells_files_apart_that_differ_in_their_query(tmp_path: Path, has_etag: bool) -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        data = (TOKENS + int(request.query["file"])).tobytes()
        first, last = request.byte_range() or (0, 0)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return HttpReply(206, data[first : last + 1], headers | ({"ETag": request.query["file"]} if has_etag else {}))

    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES)
    async with http_server(answer) as url:
        for number in (0, 7, 0):
            source = CachedSource(await HttpSource.open([f"{url}/get.bin?file={number}&key=secret"], ONE_TRY), cache)
            assert await read(source, "get.bin", 0, 4) == (TOKENS[:2] + number).tobytes()
            assert "secret" not in str(source.files)
            await source.aclose()


async def test_cache_knows_a_file_with_an_etag_whatever_signs_its_url(tmp_path: Path) -> None:
    TOKENS.tofile(tmp_path / "a.bin")
    cache = BlockCache(tmp_path / "cache", MIN_CACHE_BYTES)
    fetched = []
    async with http_server(FileServer(tmp_path)) as url:
        for signature in ("x", "y"):
            source = CachedSource(await HttpSource.open([f"{url}/a.bin?signature={signature}"], ONE_TRY), cache)
            assert await read(source, "a.bin", 0, 4) == TOKENS[:2].tobytes()
            fetched.append(source.fetched_bytes)
            await source.aclose()
    assert fetched == [TOKENS.nbytes, 0]


def test_file_names_are_last_parts_or_what_tells_the_files_apart() -> None:
    assert list(file_names(["http://h/x/a.bin?k=1", "http://g/y/b%20b.bin"]).values()) == ["a.bin", "b b.bin"]
    urls = ["http://h/data/en/0.bin", "http://h/data/de/0.bin", "http://h/data/1.bin"]
    assert list(file_names(urls).values()) == ["en/0.bin", "de/0.bin", "1.bin"]
    assert list(file_names(["http://g/0.bin", "http://h/0.bin"]).values()) == ["g/0.bin", "h/0.bin"]


def test_file_names_beside_an_mds_index_are_those_that_it_says() -> None:
    urls = ["http://h/d/index.json", "http://h/d/0/shard.00000.mds"]
    assert list(file_names(urls).values()) == ["index.json", "0/shard.00000.mds"]
    assert list(file_names(["http://h/d/index.json?k=1"]).values()) == ["index.json"]
    assert list(file_names(["http://h/d/index.json", "http://h/d/s.mds"]).values()) == ["index.json", "s.mds"]


@pytest.mark.parametrize(
    "urls", [["http://h/a.bin"] * 2, ["http://h/a.bin?x=1", "http://h/a.bin?x=2"], ["http://h/"], ["http://[::1/a"]]
)
def test_file_names_that_cannot_be_told_apart_are_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidInput):
        file_names(urls)
