"""A short chaos run (`make chaos` plays longer ones): nothing is lost, and the run moves on after it."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import RECOVERY_TIMEOUT_S, START_TIMEOUT_S
from tests.support.bounds import BOUND_S

MOST_S = START_TIMEOUT_S + RECOVERY_TIMEOUT_S + 2 * BOUND_S
"""Seconds for all of it, on a machine on which even the start and the recovery take as long as they may."""


@pytest.mark.nightly
@pytest.mark.timeout(2 * MOST_S)
@pytest.mark.parametrize("kept", [(), ("--database",)], ids=["directory", "postgres"])
async def test_run_under_faults_of_every_kind_loses_nothing(tmp_path: Path, kept: tuple[str, ...]) -> None:
    options = ("--seconds", "8", "--every", "0.8", "--seed", "5", "--keep", str(tmp_path), "--json", *kept)
    chaos = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos", *options), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(MOST_S):
            out, err = await chaos.communicate()
    except TimeoutError:
        chaos.send_signal(signal.SIGINT)  # it ends its processes
        await chaos.wait()
        raise
    assert chaos.returncode == 0, err.decode()
    figures = json.loads(out)
    assert figures["problems"] == []
    assert sum(figures["faults"].values()) >= 3
    assert figures["rounds"] >= 8
    assert (figures["duplicates"], figures["missing"], figures["digests_differing"]) == (0, 0, 0)
    assert figures["recomputed"]
    assert figures["recovered_s"] is not None
