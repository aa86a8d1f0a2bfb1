"""Several ranges in one request: what it saves, and servers that answer it wrongly, over real sockets."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.sources.byte_source import Wanted
from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multi_ranges import MAX_FAILURES, MAX_PARTS, MAX_SEVERAL_BYTES, plan_groups
from epochal.data_providers.sources.http.source import RETRY, HttpOptions, HttpSource
from tests.support.bounds import BOUND_S
from tests.support.data.data_http_client import ONE_TRY, with_header
from tests.support.servers.data_http import (
    BOUNDARY,
    FileServer,
    HttpReply,
    HttpRequest,
    http_server,
    multipart_reply,
    part,
)
from tests.support.servers.nginx import nginx

DATA = np.random.default_rng(0).integers(0, 256, 400_000, dtype=np.uint8).tobytes()
PLACES = [(5, 105), (20_000, 20_001), (50_000, 150_000), (200_000, 200_128), (399_000, 400_000)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.bin").write_bytes(DATA)
    return folder


class Several:
    """Serves a folder; what answers a request for several ranges may be replaced. Counts those requests."""

    def __init__(self, folder: Path, answer: Callable[[HttpRequest, HttpReply], HttpReply]) -> None:
        self.files = FileServer(folder)
        self.several = 0
        self._answer = answer

    async def __call__(self, request: HttpRequest) -> HttpReply:
        reply = await self.files(request)
        if len(request.byte_ranges()) == 1:
            return reply
        self.several += 1
        return self._answer(request, reply)

    @property
    def single(self) -> int:
        return len(self.files.requests) - self.several


async def read_places(source: HttpSource) -> None:
    """Read the places, and compare them."""
    wanted = [Wanted("a.bin", start, memoryview(bytearray(stop - start))) for start, stop in PLACES]
    async with asyncio.timeout(BOUND_S):
        await source.read_many_into(wanted)
    assert [bytes(one.into) for one in wanted] == [DATA[start:stop] for start, stop in PLACES]


async def test_several_ranges_are_one_request_to_a_real_server(tmp_path: Path, folder: Path) -> None:
    with nginx(tmp_path / "nginx", folder) as server:
        source = await HttpSource.open([f"{server.url}/data/a.bin"], ONE_TRY)
        before = len(server.requests())
        await read_places(source)
        await read_places(source)
        asked = server.requests()[before:]
        await source.aclose()
    ranges = ",".join(f"{start}-{stop - 1}" for start, stop in PLACES)
    assert [line.split('"')[1] for line in asked] == [f"bytes={ranges}"] * 2
    assert source.requests == 3


async def test_several_ranges_of_a_server_that_sends_one_at_a_time(tmp_path: Path, folder: Path) -> None:
    with nginx(tmp_path / "nginx", folder, max_ranges=1) as server:
        source = await HttpSource.open([f"{server.url}/data/a.bin"], ONE_TRY)
        before = len(server.requests())
        await read_places(source)
        await read_places(source)
        several = [line for line in server.requests()[before:] if "," in line]
        await source.aclose()
    assert len(several) == 1, "asked once, and remembered"


def with_parts(change: Callable[[HttpRequest], bytes]) -> Callable[[HttpRequest, HttpReply], HttpReply]:
    return lambda request, reply: replace(reply, body=change(request))


def short_parts(request: HttpRequest) -> bytes:
    """Parts without their last 900 bytes, with the right heads."""
    return b"".join(part(DATA, first, last)[: -min(900, last - first)] for first, last in request.byte_ranges())


END = f"\r\n--{BOUNDARY}--\r\n".encode()


UNFIT: dict[str, Callable[[HttpRequest, HttpReply], HttpReply]] = {
    "the whole file": lambda request, reply: HttpReply(200, DATA, {"ETag": reply.headers["ETag"]}),
    "ranges stripped by a proxy, a large file": lambda request, reply: HttpReply(
        200, b"", {"ETag": reply.headers["ETag"]}, announced_bytes=2**40, hangs=True
    ),
    "the first range alone": lambda request, reply: HttpReply(
        206, DATA[5:105], {"ETag": reply.headers["ETag"], "Content-Range": f"bytes 5-104/{len(DATA)}"}
    ),
    "one range for all": lambda request, reply: HttpReply(
        206, DATA[5:], {"ETag": reply.headers["ETag"], "Content-Range": f"bytes 5-{len(DATA) - 1}/{len(DATA)}"}
    ),
    "a part less": lambda request, reply: multipart_reply(
        DATA, request.byte_ranges()[:-1], {"ETag": reply.headers["ETag"]}
    ),
    "parts shorter than they say": with_parts(lambda request: short_parts(request) + END),
    "parts shorter than they say, then nothing": lambda request, reply: replace(
        reply, body=short_parts(request)[:-1], announced_bytes=len(reply.body)
    ),
    "a promise of 2^63 bytes": lambda request, reply: replace(reply, announced_bytes=2**63, hangs=True),
    "a promise of 2^40 bytes": lambda request, reply: replace(reply, announced_bytes=2**40, hangs=True),
    "another boundary": lambda request, reply: with_header(
        reply, "Content-Type", "multipart/byteranges; boundary=another"
    ),
    "no boundary": lambda request, reply: with_header(reply, "Content-Type", "multipart/byteranges"),
    "no version": lambda request, reply: with_header(reply, "ETag", ""),
    "compressed": lambda request, reply: with_header(reply, "Content-Encoding", "gzip"),
    "400": lambda request, reply: HttpReply(400),
    "403": lambda request, reply: HttpReply(403),
    "416": lambda request, reply: HttpReply(416, headers={"Content-Range": f"bytes */{len(DATA)}"}),
}


@pytest.mark.parametrize("answer", UNFIT.values(), ids=UNFIT)
async def test_several_ranges_answered_wrongly_are_read_one_by_one(
    answer: Callable[[HttpRequest, HttpReply], HttpReply], folder: Path
) -> None:
    server = Several(folder, answer)
    async with http_server(server) as url:
        source = await HttpSource.open([f"{url}/a.bin"], HttpOptions(retry=replace(RETRY, sleep=_no_wait)))
        for _ in range(MAX_FAILURES + 1):
            await read_places(source)
        await source.aclose()
    assert server.several <= MAX_FAILURES
    assert server.single <= 1 + len(PLACES) * (MAX_FAILURES + 1)


async def _no_wait(seconds: float) -> None:
    """Time that passes at once."""


async def test_several_ranges_that_break_off_go_on_where_they_ended(folder: Path) -> None:
    server = Several(folder, lambda request, reply: replace(reply, body=reply.body[:70_000], announced_bytes=102_000))
    async with http_server(server) as url:
        source = await HttpSource.open([f"{url}/a.bin"], ONE_TRY)
        server.files.requests.clear()
        await read_places(source)
        begun = {request.byte_ranges()[0][0] for request in server.files.requests if len(request.byte_ranges()) == 1}
        assert begun == {50_000, 200_000, 399_000}, "the parts that had come were kept"
        await read_places(source)
        await read_places(source)
        await source.aclose()
    assert server.several == MAX_FAILURES, "then no more"


async def test_several_ranges_of_a_file_that_changed_are_corrupt(folder: Path) -> None:
    server = Several(folder, lambda request, reply: reply)
    async with http_server(server) as url:
        source = await HttpSource.open([f"{url}/a.bin"], ONE_TRY)
        await read_places(source)
        (folder / "a.bin").write_bytes(DATA[::-1])
        with pytest.raises(CorruptData, match=r"a\.bin changed"):
            await read_places(source)
        await source.aclose()


async def test_several_ranges_wait_as_the_server_asks(folder: Path) -> None:
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)

    server = Several(folder, lambda request, reply: HttpReply(503, headers={"Retry-After": "7"}))
    async with http_server(server) as url:
        source = await HttpSource.open([f"{url}/a.bin"], HttpOptions(retry=replace(RETRY, sleep=note)))
        await read_places(source)
        await source.aclose()
    assert waited == [7.0]


def test_groups_of_ranges_are_bounded_and_never_touch() -> None:
    def ranges(*places: tuple[int, int]) -> list[Filling]:
        return [Filling(start, memoryview(bytearray(stop - start))) for start, stop in places]

    touching = plan_groups(ranges((0, 10), (10, 20), (30, 40), (35, 50)))
    assert [[target.start for target in group] for group in touching] == [[0], [10, 30], [35]]
    many = plan_groups(ranges(*[(100 * number, 100 * number + 50) for number in range(3 * MAX_PARTS)]))
    assert [len(group) for group in many] == [MAX_PARTS] * 3
    large = plan_groups(ranges(*[(number * 2**20, number * 2**20 + 2**19) for number in range(9)]))
    assert [len(group) for group in large] == [4, 4, 1]
    assert all(sum(target.missing for target in group) <= MAX_SEVERAL_BYTES for group in large)
