"""A client of several processes in a run, beside one of a single process."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.drive.processes import RealRun, gone, in_training, real_run
from tests.support.heavy import need_module

MESH = ("--mesh", "data=2,tensor=2", "--processes", "2", "--batch-size", "2")


def processes_of(run: RealRun, number: int = 0) -> list[int]:
    return [line["pid"] for line in run.events(run.clients[number], "mesh_process_started")]


@pytest.mark.nightly
async def test_lost_mesh_process_costs_a_round_a_killed_agent_leaves_none(tmp_path: Path) -> None:
    need_module("torch")
    overrides = {"config__init_min_clients": 2, "config__total_steps": 100_000}
    async with real_run(tmp_path, **overrides) as run:
        mesh = await run.start_client(*MESH)
        await run.start_client()
        document = await run.until(in_training(3))
        first = processes_of(run)
        os.kill(first[1], signal.SIGKILL)
        step = document.step
        while len(processes_of(run)) < 4 or run.events(mesh, "mesh_round")[-1]["step"] <= document.step + 1:
            step = (await run.until(in_training(step + 1))).step
        (failed, *_) = run.events(mesh, "round_failed")
        assert failed["kind"] == "trainer"
        await gone(first[0])
        mesh.kill()
        for pid in processes_of(run):
            await gone(pid)


@pytest.mark.nightly
async def test_mesh_options_that_do_not_go_together_are_said(tmp_path: Path) -> None:
    need_module("torch")
    async with real_run(tmp_path) as run:
        for arguments, message in (
            (("--processes", "2"), "--processes and --batch-size go with --mesh"),
            (("--mesh", "data"), "mesh 'data'"),
            (("--mesh", "data=2", "--trainer", "null"), "--mesh goes with --trainer numpy or torch"),
            (("--mesh", "fsdp=2", "--trainer", "torch", "--device", "cuda:0"), "--device cuda:0"),
            (("--mesh", "data=2", "--processes", "3"), "3 processes for a mesh of 2 devices"),
        ):
            ran = await run.command("client", run.url, *arguments)
            assert ran.code == 2
            assert message in ran.err
