"""Coordinators of several versions of Epochal over one database, as in a rolling upgrade."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from epochal import __version__
from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.tools.testnet.child_processes import Child, Children
from tests.support.bounds import BOUND_S
from tests.support.drive.other_version import start_other_version
from tests.support.drive.processes import in_training
from tests.support.drive.replicas import Replicas, replicated_run
from tests.support.servers.ports import free_port
from tests.support.servers.postgres_server import PostgresServer, postgres_server

NEWER = "99.0.0"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@contextlib.asynccontextmanager
async def other_version(replicas: Replicas, rules: int, version: str) -> AsyncIterator[tuple[Child, httpx.AsyncClient]]:
    """Yield a coordinator of another version that is starting, and a client of its address."""
    run, port = replicas.run, free_port()
    start = partial(start_other_version, rules, version)
    async with (
        Children(run.folder / version, start_process=start) as children,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=BOUND_S) as http,
    ):
        place = ("--store", run.store, "--blobs", str(replicas.blobs), "--port", str(port))
        yield await children.start(version, "coordinator", str(run.state_path), *place), http


async def readiness(http: httpx.AsyncClient) -> httpx.Response:
    """Return the answer to a probe, once there is one."""
    async with asyncio.timeout(BOUND_S):
        while True:
            with contextlib.suppress(httpx.TransportError):
                return await http.get("/readyz")
            await asyncio.sleep(0.05)


async def coordinators(replicas: Replicas) -> list[dict[str, object]]:
    """Return those that `epochal runs` lists."""
    ran = await replicas.run.command("runs", replicas.run.store, "--json")
    (run,) = json.loads(ran.out)
    found: list[dict[str, object]] = run["coordinators"]
    return found


@pytest.mark.nightly
async def test_versions_with_the_same_rules_serve_one_run(tmp_path: Path, server: PostgresServer) -> None:
    async with replicated_run(tmp_path, server, 1, config__total_steps=12) as replicas:
        run = replicas.run
        await run.start_client()
        await run.until(in_training(1))
        async with other_version(replicas, RULES_VERSION, NEWER) as (newer, _):
            await run.line_of(newer, "listening on")
            listed = await coordinators(replicas)
            assert {entry["program"]: entry["rules"] for entry in listed} == {
                __version__: RULES_VERSION,
                NEWER: RULES_VERSION,
            }
            assert [entry["is_ticking"] for entry in listed].count(True) == 1
            assert (await run.finish()).rounds == 12


async def test_newer_rules_wait_for_the_coordinators_of_older_ones(tmp_path: Path, server: PostgresServer) -> None:
    async with replicated_run(tmp_path, server, 1, config__total_steps=8) as replicas:
        run = replicas.run
        async with other_version(replicas, RULES_VERSION + 1, NEWER) as (newer, http):
            answer = await readiness(http)
            assert answer.status_code == 503
            assert f"rules version {RULES_VERSION}; this program replays version {RULES_VERSION + 1}" in answer.text
            assert "let coordinators of the version that began the run finish it" in answer.text
            assert (await http.get("/healthz")).status_code == 200
            refused = await http.post("/v1/runs/any/clients")
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            await run.start_client()
            assert (await run.finish()).rounds == 8
            assert [entry["program"] for entry in await coordinators(replicas)] == [__version__]
            assert newer.running
            await replicas.all[0].child.stop()
            assert await newer.wait(BOUND_S) == 1
            assert b"waiting_for_older_coordinators" in newer.log_path.read_bytes()
            assert "let coordinators of the version that began" in newer.log_tail()


@pytest.mark.nightly
async def test_waiting_coordinator_ends_on_a_signal(tmp_path: Path, server: PostgresServer) -> None:
    async with (
        replicated_run(tmp_path, server, 1) as replicas,
        other_version(replicas, RULES_VERSION + 1, NEWER) as (newer, http),
    ):
        await readiness(http)
        newer.process.send_signal(signal.SIGTERM)
        assert await newer.wait(BOUND_S) == -signal.SIGTERM


@pytest.mark.nightly
async def test_older_rules_are_refused_beside_newer_ones(tmp_path: Path, server: PostgresServer) -> None:
    async with (
        replicated_run(tmp_path, server, 1) as replicas,
        other_version(replicas, RULES_VERSION - 1, "0.0.1") as (older, _),
    ):
        assert await older.wait(BOUND_S) == 1
        assert "start a version of Epochal that is as new as the one that wrote it" in older.log_tail()
