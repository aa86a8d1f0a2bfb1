"""The mesh examples, as a user starts them: real processes under jax.distributed and torchrun, every row checked."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module

EXAMPLES = Path(__file__).parents[3] / "examples" / "mesh"
ROWS = 21


async def launch(logs: Path, script: str, *arguments: str) -> list[str]:
    """Every host's log."""
    environment = {**os.environ, "PYTHON": sys.executable, "LOGS": str(logs)}
    process = await asyncio.create_subprocess_exec(
        str(EXAMPLES / script), *arguments, env=environment, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(BOUND_S):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return _texts(logs)


def _texts(logs: Path) -> list[str]:
    return [log.read_text() for log in sorted(logs.glob("test_*_host*.log"))]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "script", "shards"),
    [
        ("jax", "launch_2x2_test.sh", [2, 0]),
        ("torch", "launch_1x2_test.sh", [1, 0]),
        ("jax", "launch_1x2_test.sh", [1, 0]),
        ("jax", "launch_2x1_test.sh", [1, 1]),
        ("torch", "launch_2x1_test.sh", [1, 1]),
        ("torch", "launch_2x2_test.sh", [1, 0, 1, 0]),  # a process per device
    ],
)
async def test_source_meshes_say_what_the_source_says(
    tmp_path: Path, engine: str, script: str, shards: list[int]
) -> None:
    need_module(engine)
    logs = await launch(tmp_path, script, engine)
    assert len(logs) == len(shards)
    for host, (log, local_shards) in enumerate(zip(logs, shards, strict=True)):
        local_batch_size = 4 * local_shards
        assert f"local_shards={local_shards}, local_batch_size={local_batch_size}" in log
        if local_shards:
            assert f"Host {host}: Loading data from dataset (local_shards={local_shards}," in log
            assert f"✓ Host {host} loaded {local_batch_size} examples" in log
        else:
            assert f"Host {host}: Creating dummy data iterator (will receive via broadcast)" in log
            assert f"○ Host {host} created zeros, received via broadcast" in log
        assert f"Host {host}: all {ROWS} rows are the provider's" in log


@pytest.mark.nightly
@pytest.mark.parametrize(("order", "shards"), [("data", [1, 1]), ("diagonal", [1, 1])])
async def test_other_orders_of_devices(tmp_path: Path, order: str, shards: list[int]) -> None:
    need_module("jax")
    logs = await launch(tmp_path, "launch.sh", "2", "2", "jax", order)
    loaded = [int(log.partition("provider's, ")[2].partition(" of them")[0]) for log in logs]
    assert sum(loaded) == ROWS, "each row once"
    assert [f"local_shards={count}," in log for log, count in zip(logs, shards, strict=True)] == [True, True]
