"""News of a run as server-sent events: what a viewer is told, also when it comes back, is slow, or one of too many."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from epochal.coordinator.insight.viewers import HEARTBEAT
from epochal.coordinator.run.long_polls import Pool, ReaderKind
from epochal.state.documents import RunDocument
from epochal.state.messages.history_rows import HistoryPage
from epochal.state.wire import canonical_json, parse_document
from tests.support.bounds import BOUND_S
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import (
    DIFFERENCE,
    GENESIS,
    REPLICA,
    Served,
    WireClient,
    problem,
    served_over_sockets,
    training,
)
from tests.support.servers.event_stream import viewing


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[tuple[Served, list[WireClient]]]:
    """A served run in its first round."""
    async with asyncio.timeout(BOUND_S), served_over_sockets(tmp_path, GENESIS, config__total_steps=100) as coordinator:
        clients = await training(coordinator)
        await coordinator.insight.history.is_read.wait()
        yield coordinator, clients


async def test_viewer_is_told_the_document_and_each_round_that_ends(run: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = run
    async with viewing(coordinator) as viewer:
        first = await viewer.next()
        assert first is not None
        assert (first.kind, viewer.retry_ms) == ("document", 2000)
        published = coordinator.service.published
        assert canonical_json(first.data) == published.body
        assert first.id == f"{published.document.lineage}-{published.version}-0"
        for number in range(3):
            await play_round(coordinator, clients)
            told = await viewer.until("rounds")
            page: HistoryPage = parse_document(HistoryPage, canonical_json(told.data))
            assert page.rounds.rows() == coordinator.insight.projection.between(number, number)
            document = await viewer.until("document")
            assert document.data["step"] >= number + 2
            assert document.id is not None
            assert document.id.endswith(f"-{number + 1}")


async def test_viewer_is_told_what_the_run_waits_for(run: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = run
    async with viewing(coordinator) as viewer:
        first = await viewer.until("now")
        both = first.data["waiting"]
        assert both.startswith("waits for results of ")
        assert first.data["began"] == coordinator.service.run.clock.reason
        assert first.data["explanation"] == ""
        assert (await clients[0].commit(data := clients[0].result(REPLICA, DIFFERENCE))).status_code == 200
        assert (await clients[0].put_blob(data)).status_code == 201
        second = await viewer.until("now")
        assert second.data["waiting"].startswith("waits for the result of ")
        assert second.id == first.id, "the document is the same"
    async with viewing(coordinator) as other:
        assert (await other.until("now")).data == second.data


async def test_viewer_that_comes_back_is_told_what_it_missed_once(run: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = run
    async with viewing(coordinator) as viewer:
        await play_round(coordinator, clients)
        seen = (await viewer.until("rounds")).id
    await play_round(coordinator, clients)
    await play_round(coordinator, clients)
    async with viewing(coordinator, seen) as again:
        told = await again.next()
        assert told is not None
        assert (told.kind, told.data["rounds"]["number"]) == ("rounds", [1, 2])
        now = await again.next()
        assert now is not None
        assert now.kind == "document"
        assert parse_document(RunDocument, canonical_json(now.data)) == coordinator.service.published.document
    async with viewing(coordinator, now.id) as third:
        await play_round(coordinator, clients)
        told = await third.until("rounds")
        assert told.data["rounds"]["number"] == [3]


async def test_viewer_that_missed_too_much_is_told_to_read_again(
    monkeypatch: pytest.MonkeyPatch, run: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.viewers.MAX_MISSED_ROUNDS", 1)
    coordinator, clients = run
    async with viewing(coordinator) as viewer:
        first = await viewer.next()
        assert first is not None
    for _ in range(2):
        await play_round(coordinator, clients)
    async with viewing(coordinator, first.id) as again:
        told = await again.next()
        assert told is not None
        assert told.kind == "reset"
        assert "read the history again" in told.data["detail"]
        assert (await again.until("document")).data["step"] == 3


async def test_viewer_of_another_lineage_is_told_to_read_again(run: tuple[Served, list[WireClient]]) -> None:
    async with viewing(run[0], f"{'ab' * 16}-3-0") as viewer:
        told = await viewer.next()
        assert told is not None
        assert told.kind == "reset"
        assert "the run went back" in told.data["detail"]


async def test_id_that_no_event_has_is_refused(run: tuple[Served, list[WireClient]]) -> None:
    coordinator, _ = run
    for last in ("x", "ab-1", "ab-1-2-3", "AB-1-2", "ab--1-2", "ab-1-2\tc"):
        answer = await coordinator.http.get(f"{coordinator.run_url}/events", headers={"Last-Event-ID": last})
        assert problem(answer) == "invalid-parameter", last


async def test_viewer_beyond_the_limits_is_refused(
    monkeypatch: pytest.MonkeyPatch, run: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.viewers.POOLS", {ReaderKind.STRANGER: Pool(total=2, each=2)})
    coordinator, _ = run
    url = f"{coordinator.run_url}/events"
    async with viewing(coordinator) as first, viewing(coordinator) as second:
        await first.next()
        await second.next()
        answer = await coordinator.http.get(url)
        assert problem(answer) == "overloaded"
        assert answer.headers["retry-after"] == "15"


async def test_quiet_stream_is_kept_alive_by_comments(
    monkeypatch: pytest.MonkeyPatch, run: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.viewers.HEARTBEAT_S", 0.01)
    coordinator, _ = run
    async with coordinator.http.stream("GET", f"{coordinator.run_url}/events") as answer:
        pieces = answer.aiter_raw()
        assert b"event: document" in await anext(pieces)
        assert await anext(pieces) == HEARTBEAT


async def test_stream_ends_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, run: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.viewers.HEARTBEAT_S", 0.01)
    monkeypatch.setattr("epochal.coordinator.insight.viewers.MAX_STREAM_S", 0.05)
    async with viewing(run[0]) as viewer:
        assert (await viewer.until("now")) is not None
        assert (await viewer.next()) is None


@pytest.mark.nightly
async def test_viewer_that_does_not_read_is_dropped_and_told(
    monkeypatch: pytest.MonkeyPatch, run: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.viewers.MAX_FRAMES", 2)
    coordinator, clients = run
    url = httpx.URL(coordinator.http.base_url)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    slow.connect((url.host, url.port or 80))
    slow.sendall(f"GET {coordinator.run_url}/events HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode())
    slow.settimeout(BOUND_S)
    monkeypatch.setattr("epochal.coordinator.insight.viewers._event", _long)
    async with viewing(coordinator) as quick:
        for _ in range(12):
            await play_round(coordinator, clients)
            await quick.until("rounds")
    received = await asyncio.to_thread(_all_of, slow)
    assert b"event: dropped" in received
    assert b"you read too slowly" in received
    assert await shown(coordinator, "viewers_dropped_total") == 1
    assert len(received) < 12 * 2_000_000, "of each round it is sent two events and more, if it reads"


def _long(kind: str, data: bytes, place: object = None) -> bytes:
    """An event of two megabytes, which fills what a connection holds."""
    return b"event: %b\ndata: %b%b\n\n" % (kind.encode(), data, b" " * 2_000_000)


def _all_of(connection: socket.socket) -> bytes:
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 20):
            found += piece
            if b"event: dropped" in found:
                break
    connection.close()
    return bytes(found)


async def shown(coordinator: Served, name: str) -> float:
    """Return a metric of the coordinator's, as Prometheus reads it."""
    text = (await coordinator.http.get("/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith(f"epochal_coordinator_{name} ")]
    return float(line.split()[1])


async def test_metrics_say_who_looks_and_what_it_takes(run: tuple[Served, list[WireClient]]) -> None:
    coordinator, clients = run
    assert await shown(coordinator, "viewers") == 0
    async with viewing(coordinator) as first, viewing(coordinator) as second:
        for viewer in (first, second):
            await viewer.until("now")
        assert await shown(coordinator, "viewers") == 2
        before = await shown(coordinator, "viewer_frames_total")
        await play_round(coordinator, clients)
        for viewer in (first, second):
            await viewer.until("rounds")
        assert await shown(coordinator, "viewer_frames_total") > before
    assert await shown(coordinator, "viewers_dropped_total") == 0


async def test_many_viewers_are_told_to_ask_less_often(
    monkeypatch: pytest.MonkeyPatch, run: tuple[Served, list[WireClient]]
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.viewers.VIEWERS_ASKING_PER_S", 1)
    coordinator, _ = run
    url = f"{coordinator.run_url}/history"
    async with viewing(coordinator):
        assert "Epochal-Ask-Again" not in (await coordinator.http.get(url)).headers
        async with viewing(coordinator), viewing(coordinator):
            assert (await coordinator.http.get(url)).headers["Epochal-Ask-Again"] == "3"
