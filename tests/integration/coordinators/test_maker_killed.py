"""A real coordinator that is killed at each point of making an update, one after the other, under real clients."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from tests.support.bounds import BOUND_S
from tests.support.drive.killed_makers import POINTS
from tests.support.drive.processes import PATIENT, prepared_run, start_process

CLIENTS = 2
STEPS = len(POINTS) + 3


@pytest.mark.nightly
async def test_coordinator_killed_at_each_point_of_a_merge_loses_nothing(tmp_path: Path) -> None:
    point = POINTS[0]

    async def start(
        arguments: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]
    ) -> asyncio.subprocess.Process:
        if arguments[0] != "coordinator" or not point:
            return await start_process(arguments, environment, errors)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.drive.killed_makers", point, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    overrides = {"config__init_min_clients": CLIENTS, "config__total_steps": STEPS, "merge__norm_limit": 0.0} | PATIENT
    async with prepared_run(tmp_path, **overrides) as run:
        run.children.start_process = start
        await run.start_coordinator()
        for _ in range(CLIENTS):
            await run.start_client()
        assert await run.coordinator.wait(BOUND_S) == -signal.SIGKILL, run.coordinator.log_tail()
        where = (str(run.state_path), "--store", run.store, "--port", run.url.rpartition(":")[2])
        for number, point in enumerate(POINTS[1:], 1):
            child = await run.children.start(f"killed-{number}", "coordinator", *where)
            assert await child.wait(BOUND_S) == -signal.SIGKILL, f"{point}: {child.log_tail()}"
        point = ""
        await run.start_coordinator()
        report = await run.finish()
        assert report.rounds == STEPS
