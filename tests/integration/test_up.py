"""`epochal up` with few rounds."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from epochal.view.figures.run_record import read_record
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import log_lines, run_command
from tests.support.heavy import need_module

UP_BOUND_S = 300.0
"""Seconds for `epochal up --trainer torch`, which trains rounds of 37,000 tokens; on two idle cores it takes 40."""
WITHOUT_END = ("--no-chaos", "--clients", "1", "--trainer", "null", "--rounds", "100000")


async def test_up_with_chaos_finishes_and_proves_itself(tmp_path: Path) -> None:
    arguments = ("--rounds", "6", "--clients", "2", "--trainer", "null")
    ran = await run_command("up", *arguments, "--run-dir", str(tmp_path / "run"))
    ran.expect(0, "all checks passed", "was killed without warning", "batches of data that were trained on twice")
    browser, terminal, *_ = ran.out.splitlines()
    assert browser.startswith("watch the run in a browser: http://127.0.0.1:")
    assert terminal == f"or in another terminal: epochal watch {browser.split()[-1].removesuffix('/')}"
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    expected = {"duplicates": 0, "missing": 0, "quarantined": 0, "unapplied": 0, "problems": [], "clients": 3}
    assert {key: report[key] for key in expected} == expected
    assert report["rounds"] >= 6
    assert 0 < report["tokens"] <= report["rounds"] * 48 * 2 * 512
    assert report["replicas_identical"] is True
    assert report["replay_identical"] is True
    assert report["killed_at_step"] >= 2
    assert report["joined_at_step"] >= 3
    record = await read_record(str(tmp_path / "run"))
    assert {member.name for member in (*record.members, *record.gone)} == {f"client-{number}" for number in range(1, 4)}
    audited = await run_command("audit", (tmp_path / "run").as_uri(), "--recompute", "--json")
    assert (audited.code, json.loads(audited.out)["rounds"]) == (0, report["rounds"])
    (await run_command("up", "--run-dir", str(tmp_path / "run"))).expect(2, "is not empty")


@pytest.mark.nightly
async def test_up_with_torch_survives_chaos_and_learns(tmp_path: Path) -> None:
    need_module("torch")
    need_module("transformers")
    arguments = ("--trainer", "torch", "--rounds", "4", "--clients", "2")
    ran = await run_command("up", *arguments, "--run-dir", str(tmp_path / "run"), bound_s=UP_BOUND_S)
    ran.expect(0, "all checks passed", "was killed without warning", f"epochal export {tmp_path / 'run'} --out DIR")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["rounds"], report["clients"], report["problems"]) == (4, 3, [])
    assert report["killed_at_step"] >= 2
    assert report["joined_at_step"] >= 3
    newcomer = log_lines(tmp_path / "run" / "logs" / "client-3.log")
    assert [line["step"] for line in newcomer if line["event"] == "replica_held"][-1] == 4
    assert report["loss_last"] < report["loss_first"]
    assert report["held_out_loss_last"] < report["held_out_loss_first"]


@pytest.mark.nightly
async def test_up_that_does_not_finish_in_time_fails_with_one_line(tmp_path: Path) -> None:
    ran = await run_command("up", *WITHOUT_END, "--timeout", "1", "--run-dir", str(tmp_path / "run"))
    ran.expect(1, "did not finish within 1 s")


async def training_up(run: Path) -> tuple[asyncio.subprocess.Process, int]:
    """Return `epochal up` with one client in its first round, and the process id of its coordinator."""
    arguments = (sys.executable, "-m", "epochal", "up", *WITHOUT_END, "--run-dir", str(run))
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE, stderr=PIPE, env=environment)
    assert process.stdout is not None
    async with asyncio.timeout(BOUND_S):
        while b"RoundTrain" not in (line := await process.stdout.readline()):
            assert line, "it ended"
    return process, int((run / "coordinator" / "lock").read_text().split()[0])


@pytest.mark.nightly
async def test_up_whose_coordinator_is_killed_says_so(tmp_path: Path) -> None:
    process, coordinator = await training_up(tmp_path / "run")
    os.kill(coordinator, signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "coordinator ended with code -9" in errors.decode()
    assert "Traceback" not in errors.decode()


@pytest.mark.nightly
async def test_up_that_is_terminated_leaves_no_process_behind(tmp_path: Path) -> None:
    process, coordinator = await training_up(tmp_path / "run")
    process.terminate()
    async with asyncio.timeout(BOUND_S):
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (
        1,
        b"epochal: stopped before the run ended\nsee: epochal explain epochal-error\n",
    )
    with pytest.raises(ProcessLookupError):
        os.kill(coordinator, 0)
