"""A relay passes as many bytes a second as its link, later by half of a round trip, and counts them."""

import asyncio
import time

import pytest

from tests.support.servers.limited_link import Bucket, ServerBuckets, limited_link
from tests.support.servers.raw_http import raw_server

RATE, ROUND_TRIP_S, SIZE_BYTES = 400_000.0, 0.1, 200_000
ATTEMPTS = 3
SLACK_S = 0.1
"""By how much longer bytes may take on a machine without other work."""


def test_bucket_passes_bytes_one_after_the_other() -> None:
    bucket = Bucket(1000.0)
    assert bucket.taken(500, 10.0) == pytest.approx(10.5)
    assert bucket.taken(500, 10.0) == pytest.approx(11.0)
    assert bucket.taken(500, 20.0) == pytest.approx(20.5)
    assert bucket.passed_bytes == 1500


@pytest.mark.parametrize(("rate", "expected"), [(10_000.0, 2048), (500_000.0, 10_000), (1e9, 65_536)])
def test_pieces_are_what_a_link_passes_in_a_moment(rate: float, expected: int) -> None:
    assert Bucket(rate).piece_bytes == expected


async def _taken_s(*, connections: int, server_bytes_per_s: float, sends: bool) -> tuple[float, int, int]:
    """Return the seconds until so many connections at once have moved `SIZE_BYTES` each, and the bytes each way."""
    body = bytes(SIZE_BYTES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readexactly(SIZE_BYTES if sends else 1)
        writer.write(body[:1] if sends else body)
        await writer.drain()
        assert asked

    server = ServerBuckets()
    server.to_it.bytes_per_s = server.from_it.bytes_per_s = server_bytes_per_s

    async def moved(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(body if sends else body[:1])
        await reader.readexactly(1 if sends else SIZE_BYTES)
        writer.close()
        await writer.wait_closed()

    async with raw_server(serve) as port, limited_link(port, server) as link:
        link.up.bytes_per_s = link.down.bytes_per_s = RATE
        link.round_trip_s = ROUND_TRIP_S
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(connections):
                tasks.create_task(moved(int(link.url.rpartition(":")[2])))
        return time.perf_counter() - began_s, link.up.passed_bytes, link.down.passed_bytes


WAYS = pytest.mark.parametrize(
    ("connections", "server_bytes_per_s", "rate", "sends"),
    [(1, 1e9, RATE, False), (1, 1e9, RATE, True), (2, 1e9, RATE, False), (1, RATE / 2, RATE / 2, True)],
    ids=["down", "up", "two share it", "the coordinator's link is slower"],
)


@pytest.mark.nightly
@WAYS
async def test_bytes_come_no_faster_than_the_link_and_late(
    connections: int, server_bytes_per_s: float, rate: float, sends: bool
) -> None:
    took_s, up, down = await _taken_s(connections=connections, server_bytes_per_s=server_bytes_per_s, sends=sends)
    assert took_s >= 0.98 * (connections * SIZE_BYTES / rate + ROUND_TRIP_S)
    assert sorted((up, down)) == [connections, connections * SIZE_BYTES]


@WAYS
@pytest.mark.nightly  # it compares real time with a rate: other programs on the machine make it longer
async def test_bytes_come_as_fast_as_the_link(
    connections: int, server_bytes_per_s: float, rate: float, sends: bool
) -> None:
    times_s = []
    for _ in range(ATTEMPTS):
        took_s, *_ = await _taken_s(connections=connections, server_bytes_per_s=server_bytes_per_s, sends=sends)
        times_s.append(took_s)
    assert min(times_s) <= connections * SIZE_BYTES / rate + ROUND_TRIP_S + SLACK_S
