"""The sinks of W&B (offline) and trackio (local): each a process of its own, killed while it writes, then resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bounds import BOUND_S
from tests.support.data.figure_rows import LINEAGE, OTHER_LINEAGE
from tests.support.heavy import need_module

NAME = f"a-run-{LINEAGE[:12]}"
OTHER_NAME = f"a-run-{OTHER_LINEAGE[:12]}"
PROGRAM = """
import os, signal, sys
from epochal.view.sinks.{module} import {maker}
from tests.support.data.figure_rows import LINEAGE, OTHER_LINEAGE, rows
from tests.support.killed_sink import RUN_ID, feed
sink = {maker}("project")
if sys.argv[1] == "kill":
    sink.open(RUN_ID, LINEAGE)
    sink.write(LINEAGE, rows(0, 2))
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "back":
    sink.open(RUN_ID, LINEAGE)
    assert sink.go_back(OTHER_LINEAGE, []) is None
    sink.write(OTHER_LINEAGE, rows(0, 1))
    sink.close()
else:
    feed(sink, int(sys.argv[1]))
"""


def run(module: str, maker: str, what: str, environment: dict[str, str]) -> int:
    """Run the program in a process; return its exit code."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module, maker=maker), what],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    assert ran.returncode in (0, -signal.SIGKILL), ran.stdout + ran.stderr
    return ran.returncode


@pytest.mark.nightly
def test_wandb_has_each_round_once_after_kills(tmp_path: Path) -> None:
    need_module("wandb")
    from epochal.view.sinks.wandb_run import steps_in

    environment = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}

    def steps(name: str) -> list[int]:
        files = sorted(tmp_path.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))
        return [step for file in files for step in steps_in(file)]

    assert run("wandb_run", "WandbSink", "1", environment) == 0
    assert steps(NAME) == [0, 1]
    assert run("wandb_run", "WandbSink", "kill", environment) == -signal.SIGKILL
    assert run("wandb_run", "WandbSink", "5", environment) == 0
    assert steps(NAME) == list(range(6))
    assert run("wandb_run", "WandbSink", "back", environment) == 0
    assert (steps(NAME), steps(OTHER_NAME)) == (list(range(6)), [0, 1])


@pytest.mark.nightly
def test_trackio_has_each_round_once_after_kills(tmp_path: Path) -> None:
    need_module("trackio")
    environment = {"TRACKIO_DIR": str(tmp_path)}
    assert run("trackio_run", "TrackioSink", "kill", environment) == -signal.SIGKILL
    assert run("trackio_run", "TrackioSink", "5", environment) == 0
    assert run("trackio_run", "TrackioSink", "back", environment) == 0
    assert steps_of(tmp_path, NAME, OTHER_NAME) == [list(range(6)), [0, 1]]


def steps_of(folder: Path, *names: str) -> list[list[int]]:
    """Return the steps that trackio's own storage has of each run."""
    code = (
        "import sys; from trackio.sqlite_storage import SQLiteStorage\n"
        "for name in sys.argv[1:]:\n"
        "    print(*(log['step'] for log in SQLiteStorage.get_logs('project', name)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={**os.environ, "TRACKIO_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=BOUND_S,
    )
    return [[int(step) for step in line.split()] for line in ran.stdout.splitlines()]
