"""`HttpDataProvider` against servers on a bad day: each its own clear error, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import data_providers.http
from data_providers.formats import HEAD_BYTES
from data_providers.http import MAX_CONNECTIONS, MAX_WHOLE_FILE_BYTES, HttpDataProvider
from data_providers.local import LocalDataProvider
from data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from data_providers.ranges import MAX_RANGE_BYTES
from state.errors import DataError
from state.intervals import BatchId
from tests.support.data_files import SEED
from tests.support.data_http import Answer, FileServer, HttpReply, HttpRequest, http_server

SPEC = DatasetSpec(2, 64)
TOKENS = np.arange(64 * 400, dtype="<u2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path


@asynccontextmanager
async def opened(answer: Answer, spec: DatasetSpec = SPEC) -> AsyncIterator[HttpDataProvider]:
    async with http_server(answer) as url:
        provider = await HttpDataProvider.open([f"{url}/a.bin"], spec)
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
            await provider.get_samples(BatchId(0, 0))
        assert type(raised.value) is error
        answer.fault = None
        assert (await provider.get_samples(BatchId(0, 0))).input_ids.tolist() == TOKENS[:64].tolist()


async def test_http_503_says_when_to_try_again(folder: Path) -> None:
    answer = Faulty(folder)
    async with opened(answer) as provider:
        answer.fault = FAULTS["503"][0]
        with pytest.raises(SourceUnavailable) as raised:
            await provider.get_samples(BatchId(0, 0))
    assert raised.value.retry
    assert raised.value.context["retry_after"] == "7"


async def test_http_hanging_server_is_unavailable_in_bounded_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Faulty(folder)
    async with opened(answer) as provider:
        monkeypatch.setattr(data_providers.http, "ANSWER_TIMEOUT_S", 0.05)
        answer.fault = lambda reply: replace(reply, body=reply.body[:10], announced_bytes=len(reply.body), hangs=True)
        with pytest.raises(SourceUnavailable, match="in time"):
            await provider.get_samples(BatchId(0, 0))


async def test_http_server_that_is_away_is_unavailable(folder: Path) -> None:
    async with http_server(FileServer(folder)) as url:
        provider = await HttpDataProvider.open([f"{url}/a.bin"], SPEC)
    with pytest.raises(SourceUnavailable):
        await provider.get_samples(BatchId(0, 0))
    await provider.aclose()
    with pytest.raises(SourceUnavailable):
        await HttpDataProvider.open([f"{url}/a.bin"], SPEC)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/a.bin", "http://[::1/a.bin"])
async def test_http_url_that_cannot_be_asked_is_rejected(url: str) -> None:
    with pytest.raises(Rejected):
        await HttpDataProvider.open([url], SPEC)


async def test_http_small_file_from_a_server_without_ranges_is_read(folder: Path) -> None:
    async def whole(request: HttpRequest) -> HttpReply:
        return HttpReply(200, TOKENS.tobytes())

    async with opened(whole) as provider:
        assert (await provider.get_samples(BatchId(7, 8))).input_ids.tolist() == TOKENS[7 * 64 : 9 * 64].tolist()


async def test_http_truncated_file_is_corrupt(folder: Path) -> None:
    async with opened(FileServer(folder)) as provider:
        (folder / "a.bin").write_bytes(TOKENS[:100].tobytes())
        with pytest.raises(CorruptData, match="changed"):
            await provider.get_samples(BatchId(300, 310))


async def test_http_request_for_neighbours_is_one_range(folder: Path) -> None:
    files = FileServer(folder)
    async with opened(files) as provider:
        files.requests.clear()
        await provider.get_samples(BatchId(10, 40))
    assert [request.byte_range() for request in files.requests] == [(10 * 128, 41 * 128 - 1)]


async def test_http_large_request_comes_in_parts_under_the_limit_of_connections(tmp_path: Path) -> None:
    spec = DatasetSpec(2, 2**17)
    tokens = np.arange(10 * MAX_RANGE_BYTES // 2, dtype=np.uint32).astype("<u2")
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

    async with opened(answer, spec) as provider, asyncio.timeout(20):
        batch = await provider.get_samples(BatchId(0, provider.sequence_count - 1))
        assert np.array_equal(batch.input_ids, tokens)
    assert len(files.requests) == 1 + 10
    assert most_active == MAX_CONNECTIONS


async def test_http_shuffled_requests_take_few_ranges(tmp_path: Path) -> None:
    spec = DatasetSpec(2, 4, SEED)
    np.zeros(4 * 16 * 2048, "<u2").tofile(tmp_path / "a.bin")
    files = FileServer(tmp_path)
    async with opened(files, spec) as provider:
        assert provider.order.spec == spec
        files.requests.clear()
        await provider.get_samples(BatchId(0, 255))
    assert len(files.requests) <= 17


async def test_http_has_the_fingerprint_of_the_local_file(folder: Path) -> None:
    async with opened(FileServer(folder)) as provider:
        assert provider.fingerprint == LocalDataProvider.open(folder, SPEC).fingerprint


async def test_http_answer_that_fails_ends_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_providers.ranges.MAX_RANGE_BYTES", 128)
    monkeypatch.setattr("data_providers.ranges.MAX_GAP_BYTES", -1)
    calm = FileServer(folder)

    async def answer(request: HttpRequest) -> HttpReply:
        if request.byte_range() == (0, HEAD_BYTES - 1):
            return await calm(request)
        if request.byte_range() == (0, 127):
            return HttpReply(403)
        return HttpReply(206, announced_bytes=128, hangs=True)

    async with opened(answer) as provider, asyncio.timeout(5):
        with pytest.raises(Rejected):
            await provider.get_samples(BatchId(0, 4))
