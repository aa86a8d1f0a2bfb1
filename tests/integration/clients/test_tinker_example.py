"""The example of the tinker SDK, as a user starts it: a service and a client, two processes."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from epochal.tools.testnet.child_processes import Children
from tests.support.bounds import BOUND_S
from tests.support.heavy import need_module

ROOT = Path(__file__).parents[3]


@pytest.mark.nightly
async def test_example_learns_through_the_sdk_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("tinker")
    monkeypatch.setenv("EPOCHAL_TRAINER_TOKEN", "only-for-us")
    weights = tmp_path / "weights"
    async with Children(tmp_path / "logs") as children:
        _, url = await children.start_server(
            "service", "trainer-service", "--port", "0", "--tinker", "--weights-dir", str(weights)
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "examples" / "tinker" / "train.py"),
            url,
            "30",
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(BOUND_S):
            out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    losses = [float(found) for found in re.findall(r"(\d+\.\d+) nats per byte", out.decode())]
    assert losses[0] > 5
    assert losses[-1] < 3.4, "below what knowing the bytes' frequencies gives"
    assert len(list(weights.glob("*/last.safetensors"))) == 1
