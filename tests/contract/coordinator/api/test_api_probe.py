"""The speed test over HTTP: its bytes, its bounds, and that nothing of it is kept."""

import asyncio
from pathlib import Path

import httpx
import pytest

from epochal.coordinator.api.probe_routes import MAX_PROBES, PROBE, PROBES_OF_ADDRESS_AT_ONCE, Probes
from epochal.state.errors import Refused
from epochal.state.messages.probe import MAX_PROBE_BYTES, ProbeReport
from epochal.state.wire import parse_document
from tests.support.drive.served import Served, problem, served_over_sockets


async def test_bytes_come_and_go_in_the_number_that_was_asked_for(tmp_path: Path) -> None:
    async with served_over_sockets(tmp_path) as coordinator:
        for count in (1, 65_536, 100_001):
            answer = await coordinator.http.get(f"{PROBE}?bytes={count}")
            assert (answer.status_code, len(answer.content)) == (200, count)
            sent = await coordinator.http.post(PROBE, content=answer.content)
            report = parse_document(ProbeReport, sent.content)
            assert report.received_bytes == count
            assert abs(report.now_s - coordinator.service.now_s()) < 60


@pytest.mark.parametrize("query", ["bytes=0", f"bytes={MAX_PROBE_BYTES + 1}", "bytes=x"])
async def test_other_numbers_of_bytes_are_refused(coordinator: Served, query: str) -> None:
    assert problem(await coordinator.http.get(f"{PROBE}?{query}")) == "invalid-parameter"


async def test_longer_body_is_refused(coordinator: Served) -> None:
    assert problem(await coordinator.http.post(PROBE, content=bytes(MAX_PROBE_BYTES + 1))) == "body-too-large"


async def test_place_of_a_transfer_that_was_left_is_free_again(tmp_path: Path) -> None:
    async with served_over_sockets(tmp_path) as coordinator:
        for _ in range(2 * MAX_PROBES):
            async with httpx.AsyncClient(base_url=coordinator.http.base_url) as http:
                async with http.stream("GET", PROBE, params={"bytes": MAX_PROBE_BYTES}) as answer:
                    assert answer.status_code == 200
                    assert await anext(answer.aiter_raw())
                async with asyncio.timeout(60):
                    while (await coordinator.http.get(f"{PROBE}?bytes=1")).status_code != 200:
                        pass


def test_few_transfers_go_on_at_a_time_and_few_come_from_an_address() -> None:
    probes = Probes()
    with probes.place("127.0.0.1"), probes.place("127.0.0.1"), pytest.raises(Refused) as error:
        probes.place("127.0.0.1").__enter__()
    assert error.value.kind == "overloaded"
    for _ in range(PROBES_OF_ADDRESS_AT_ONCE):
        with probes.place("192.0.2.1"):
            pass
    with pytest.raises(Refused) as error:
        probes.place("192.0.2.1").__enter__()
    assert error.value.kind == "rate-limited"
    with probes.place("192.0.2.2"):
        pass
