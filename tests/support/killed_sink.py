"""A sink whose process is killed at every line of its module, one after the other, each time followed by a restart.

Run as a program, it forks a process for each: forks share what is imported, and cost milliseconds.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.bounds import BOUND_S
from tests.support.data.figure_rows import LINEAGE, rows

RUN_ID = "a run"
LAST = 3
AT_A_TIME = 2
MAX_LINES = 5_000


def feed(sink: Any, last: int = LAST) -> None:
    """Write the rounds that the sink lacks, as a follower does."""
    kept = sink.open(RUN_ID, LINEAGE)
    first = 0 if kept is None else kept.next
    while first <= last:
        until = min(first + AT_A_TIME - 1, last)
        sink.write(LINEAGE, rows(first, until))
        first = until + 1
    sink.close()


def _killed_at(line: int, module: str) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that kills this process at the n-th line that is carried out in a module."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module:
            return None
        if event == "line":
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def _in_child(work: Callable[[], None]) -> int:
    """Return the exit code of a forked process that does the work."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(module_name: str, maker: str, folder: Path, stride: int, shared: Sequence[str]) -> None:
    """Kill at every `stride`-th line. Each killed sink lies in a folder of its own, and was completed afterwards."""
    for name in shared:
        importlib.import_module(name)
    module = importlib.import_module(module_name)
    make = getattr(module, maker)
    source = str(module.__file__)
    for kills, line in enumerate(range(1, MAX_LINES, stride)):
        place = folder / f"{line:05}"
        place.mkdir()

        def killed(place: Path = place, line: int = line) -> None:
            sink = make(place / "out")
            sys.settrace(_killed_at(line, source))
            feed(sink)

        code = _in_child(killed)
        if code == 1:
            raise SystemExit(f"the sink failed before line {line}")
        again = _in_child(lambda place=place: feed(make(place / "out")))  # type: ignore[misc]
        if again:
            raise SystemExit(f"killed at line {line}, the sink does not go on")
        if not code:
            print(json.dumps({"kills": kills}))
            return
    raise SystemExit(f"it takes more than {MAX_LINES} lines")


def kill_at_every_line(
    module_name: str, maker: str, folder: Path, stride: int = 1, shared: Sequence[str] = ()
) -> list[Path]:
    """Return the places of the sinks that were killed and then completed.

    Args:
        module_name: of the sink; lines are counted in it.
        maker: name of a function or class of it that takes a path and returns the sink.
        folder: for them.
        stride: kills at each so many lines.
        shared: modules that are imported once for all processes.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_sink", module_name, maker, str(folder), str(stride), *shared],
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["kills"] >= 60 // stride
    return sorted(place / "out" for place in folder.iterdir())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
