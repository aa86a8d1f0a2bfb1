"""A coordinator with few descriptors under a flood of strangers: members go on, and the log stays small."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.state.phase_names import RunState
from tests.support.drive.processes import RealRun, in_training, prepared_run, real_run
from tests.support.drive.run_place import RunPlace

DESCRIPTORS = 128
FLOOD_CONNECTIONS = 150
"""More than twice as many as the coordinator has places for."""
MAX_LOG_BYTES = 200_000
UNFINISHED = (
    b"POST /v1/runs/test-run/clients/challenge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 90\r\n\r\n{"
)


@contextlib.asynccontextmanager
async def flooded(url: str) -> AsyncIterator[None]:
    """Keep connections with unfinished requests open, and open each again when it is ended."""
    host, _, port = url.removeprefix("http://").partition(":")

    async def attack() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                with contextlib.closing(writer):
                    writer.write(UNFINISHED)
                    await reader.read()

    async with asyncio.TaskGroup() as tasks:
        attackers = [tasks.create_task(attack()) for _ in range(FLOOD_CONNECTIONS)]
        yield
        for attacker in attackers:
            attacker.cancel()


@contextlib.asynccontextmanager
async def connected(url: str, count: int) -> AsyncIterator[None]:
    """Hold connections that send nothing."""
    host, _, port = url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.enter_context(contextlib.closing(writer))
        yield


def with_few_descriptors(folder: Path) -> str:
    """Return a program that runs Python with a limit of open files, which it cannot raise."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nulimit -n {DESCRIPTORS}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def assert_calm(run: RealRun) -> None:
    """Assert that the coordinator met no failure, and logged little."""
    for event in ("store_failed", "store_blocked", "request_failed"):
        assert run.events(run.coordinator, event) == []
    text = run.coordinator.log_path.read_text()
    assert "Traceback" not in text
    assert len(text) < MAX_LOG_BYTES


@pytest.mark.nightly
async def test_flood_of_strangers_with_few_descriptors(place: RunPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prepared_run(place, config__init_min_clients=2, config__total_steps=12) as run:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", with_few_descriptors(place.folder))
            await run.start_coordinator()
        for _ in range(2):
            await run.start_client()
        await run.until(in_training(2))
        async with flooded(run.url):
            await run.until(in_training(10))
            ready = await run.http.get("/readyz")
            assert ready.status_code == 200
            assert "shedding connections (" in ready.text
        await run.finish()
        assert_calm(run)


@pytest.mark.nightly
async def test_lack_of_descriptors_passes(place: RunPlace) -> None:
    async with real_run(place, 2, config__total_steps=12) as run:
        await run.until(in_training(2))
        pid = run.coordinator.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
        async with connected(run.url, 20):
            await run.until_logged(run.coordinator, "accept_failed", while_answering=False)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        await run.finish()
        assert len(run.events(run.coordinator, "accept_failed")) == 1
        assert run.events(run.coordinator, "store_failed") == []
        assert "Traceback" not in run.coordinator.log_path.read_text()
        assert (await run.status()).run_state is RunState.FINISHED
