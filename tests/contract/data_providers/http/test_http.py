"""Data over HTTP against servers on a bad day: each its own clear error, over real sockets."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import epochal.data_providers.sources.http.requester
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import read
from epochal.data_providers.sources.http.range_answers import MAX_WHOLE_FILE_BYTES
from epochal.data_providers.sources.http.source import MAX_CONNECTIONS, RETRY, HttpOptions, HttpSource
from epochal.state.errors import DataError
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SEED
from tests.support.data.data_http_client import ONE_TRY, TOKENS, Faulty, open_url, opened, with_header
from tests.support.servers.data_http import FileServer, HttpReply, HttpRequest, http_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path


async def no_wait(seconds: float) -> None:
    """Time that passes at once."""


FOUR_TRIES = HttpOptions(retry=replace(RETRY, sleep=no_wait))

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
    "endless range": (lambda reply: with_header(reply, "Content-Range", f"bytes 0-{2**40}/{2**41}"), CorruptData),
    "promise of 2^63 bytes": (lambda reply: replace(reply, announced_bytes=2**63, hangs=True), SourceUnavailable),
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


async def test_http_hanging_server_is_unavailable_in_bounded_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Faulty(folder)
    async with opened(answer) as provider:
        monkeypatch.setattr(epochal.data_providers.sources.http.requester, "ANSWER_TIMEOUT_S", 0.05)
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


async def test_http_url_of_no_known_format_is_corrupt_and_says_which_are_read(folder: Path) -> None:
    (folder / "tokens").write_bytes(TOKENS.tobytes())
    async with http_server(FileServer(folder)) as url:
        with pytest.raises(CorruptData, match=r"/tokens holds no token files \(\.bin, \.ds, \.npy\)"):
            await open_url(f"{url}/tokens?key=secret")


async def test_http_request_for_neighbours_is_one_range(folder: Path) -> None:
    files = FileServer(folder)
    async with opened(files) as provider:
        files.requests.clear()
        await provider.get_samples(DataIds(10, 40))
    assert [request.byte_range() for request in files.requests] == [(10 * 128, 41 * 128 - 1)]


async def test_http_large_request_comes_in_parts_under_the_limit_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_bytes = 2**18
    monkeypatch.setattr("epochal.data_providers.providers.ranged.MAX_RANGE_BYTES", range_bytes)
    spec = DatasetSpec(2, 2**15)
    tokens = np.arange(20 * range_bytes // 2, dtype=np.uint32).astype("<u2")
    tokens.tofile(tmp_path / "a.bin")
    files, active, most_active, crowded = FileServer(tmp_path), 0, 0, asyncio.Event()

    async def answer(request: HttpRequest) -> HttpReply:
        nonlocal active, most_active
        active += 1
        most_active = max(most_active, active)
        if active == MAX_CONNECTIONS:
            crowded.set()
        if len(files.requests):  # all but the first look at the file wait for each other
            await crowded.wait()
        active -= 1
        return await files(request)

    async with opened(answer, spec) as provider, asyncio.timeout(BOUND_S):
        batch = await provider.get_samples(DataIds(0, provider.sequence_count - 1))
        assert np.array_equal(batch.input_ids, tokens)
    assert len(files.requests) == 1 + 20
    assert most_active == MAX_CONNECTIONS


async def test_http_shuffled_requests_take_few_ranges(tmp_path: Path) -> None:
    spec = DatasetSpec(2, 4, SEED)
    np.zeros(4 * 16 * 2048, "<u2").tofile(tmp_path / "a.bin")
    files = FileServer(tmp_path)
    async with opened(files, spec) as provider:
        assert provider.order.spec == spec
        files.requests.clear()
        await provider.get_samples(DataIds(0, 255))
    assert len(files.requests) <= 17


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
        async with asyncio.timeout(BOUND_S):
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
async def test_http_retries_wait_as_the_server_asks_within_the_bound(
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
