"""`--wait-for-store`: a coordinator that starts while its database keeps nothing waits for it, within a bound."""

import asyncio
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.state.errors import StoreBlocked
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.processes import prepared_run
from tests.support.drive.served import GENESIS
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.postgres_server import PostgresServer, postgres_server
from tests.support.thinned import thinned


class Said(logging.Handler):
    """Sets an event at the first message of a name, and counts them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self.count, self.event = name, 0, asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == self._name:
            self.count += 1
            self.event.set()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def said() -> Iterator[Said]:
    handler, log = Said("waiting_for_store"), logging.getLogger("epochal.coordinator.run.waiting_to_start")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def options(url: str, folder: Path, wait_s: float) -> ServeOptions:
    return ServeOptions(url, Endpoint(port=0), genesis=GENESIS, blobs_folder=folder, wait_for_store_s=wait_s)


async def is_ready(options: ServeOptions) -> bool:
    """Serve a run, and return whether it is ready."""
    async with serving(state_file(), options) as running, httpx.AsyncClient(verify=PLAIN) as http:
        return (await http.get(f"{running.url}/readyz")).status_code == 200


async def test_coordinator_waits_for_a_database_that_is_down(
    tmp_path: Path, server: PostgresServer, said: Said
) -> None:
    url = server.new_database()
    server.stop()
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        ready = tasks.create_task(is_ready(options(url, tmp_path, BOUND_S)))
        await said.event.wait()
        await asyncio.to_thread(server.start)
    assert (ready.result(), said.count) == (True, 1)


async def test_coordinator_ends_when_the_wait_is_over_or_none_is_asked_for(
    tmp_path: Path, server: PostgresServer, said: Said
) -> None:
    url = server.new_database()
    server.stop()
    for wait_s in (0.0, 0.3):
        with pytest.raises(StoreBlocked):
            await is_ready(options(url, tmp_path, wait_s))
    assert said.count == 1


@thinned("number", [signal.SIGTERM, signal.SIGINT], kept=1)
async def test_waiting_coordinator_ends_at_once_by_a_signal(
    tmp_path: Path, server: PostgresServer, number: signal.Signals
) -> None:
    url = server.new_database()
    server.stop()
    async with prepared_run(tmp_path / "run") as run:
        run.write_state()
        where = ("--store", url, "--blobs", str(tmp_path), "--port", "0", "--wait-for-store", "600")
        child = await run.children.start("coordinator", "coordinator", str(run.state_path), *where)
        run.coordinator = child
        waits = await run.until_logged(child, "waiting_for_store", while_answering=False)
        assert waits["at_most_s"] == 600
        child.process.send_signal(number)
        assert await child.wait(BOUND_S) not in (None, 0)
