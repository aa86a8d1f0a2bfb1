"""`epochal.run_local`: a whole run from Python, inside an event loop as a notebook has, and nothing left after it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import epochal
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file

QUICK = {"config__total_steps": 2, "config__waiting_for_members_extra_time": 0.001, "config__init_min_clients": 1}
KILLED = """
import os, signal, sys
import epochal
from tests.support.data.states import state_file
state = state_file(config__total_steps=100000, config__init_min_clients=1)
run = epochal.run_local(state, clients=1, run_dir=sys.argv[1])
print(*(child.process.pid for child in run._children.started), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def lives(pid: int) -> bool:
    """Whether a process runs; one that is a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_run_trains_inside_an_event_loop_and_leaves_nothing(tmp_path: Path) -> None:
    with epochal.run_local(state_file(**QUICK), clients=1, run_dir=tmp_path / "run") as run:
        pids = [child.process.pid for child in run._children.started]
        assert len(pids) == 2
        connection = run.connect()
        assert [row.number for row in connection.follow()] == [0, 1]
        assert run.wait(BOUND_S).run_state is RunState.FINISHED
        assert list(connection.history().step) == [1, 2]
        assert [client.name for client in connection.round(1).clients] == ["client-1"]
    assert [pid for pid in pids if lives(pid)] == []
    with pytest.raises(EpochalError, match="was stopped"):
        run.connect()
    assert (run.store / "run.sqlite").is_file()


@pytest.mark.nightly
async def test_process_that_fails_is_told_with_its_log(tmp_path: Path) -> None:
    run = epochal.run_local(state_file(**QUICK | {"config__total_steps": 100_000}), clients=1, run_dir=tmp_path / "run")
    try:
        run._children.started[1].kill()
        with pytest.raises(EpochalError, match="client-1 ended with code -9"):
            run.wait(BOUND_S)
    finally:
        run.stop()


@pytest.mark.nightly
def test_processes_end_even_if_the_interpreter_is_killed(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux ends processes with their parent")
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    for pid in map(int, ran.stdout.split()):
        try:
            waiting = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(waiting)
        assert poll.poll(BOUND_S * 1000)
        os.close(waiting)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"clients": 0}, "clients=0; allowed: 1 to 64"), ({"state": "x.toml", "rounds": 3}, "rounds is for the demo")],
)
def test_wrong_arguments_start_nothing(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        epochal.run_local(run_dir=tmp_path / "run", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("state", [None, state_file(**QUICK)])
def test_folder_that_holds_something_is_left_alone(tmp_path: Path, state: StateFile | None) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InvalidInput, match=r"run_dir='.*' is not empty; allowed: a new or empty folder"):
        epochal.run_local(state, run_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
