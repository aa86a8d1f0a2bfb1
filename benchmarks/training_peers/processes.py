"""Worker processes under measurement: started, read through their logs, and killed with all of their own children."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.training_peers.event_lines import Event, EventReader

LOG_TAIL_BYTES = 2000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Worker:
    """A process in a group of its own. Its events come from `log_path`, in the order of their times."""

    name: str
    process: "subprocess.Popen[bytes]"
    log_path: Path
    reader: EventReader
    started_s: float
    events: list[Event] = field(default_factory=list)
    is_killed: bool = False

    def read(self) -> list[Event]:
        """Return every event so far."""
        with self.log_path.open("rb") as log:
            self.events += self.reader.read(log)
        return self.events

    def applied(self) -> list[Event]:
        """Return the applied steps so far."""
        return [event for event in self.read() if event.kind == "applied"]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill the process and all of its children without warning, like a machine that loses its power."""
        if self.is_killed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.is_killed = True

    def log_tail(self) -> str:
        """Return the end of what the process wrote, for a message."""
        texts = [path.read_bytes()[-LOG_TAIL_BYTES:] for path in (self.log_path, errors_path(self.log_path))]
        return b"\n".join(texts).decode(errors="replace")


def errors_path(log_path: Path) -> Path:
    """Return where the process's standard error goes."""
    return log_path.with_suffix(".err")


def start(
    command: Sequence[str], log_path: Path, reader: EventReader, environment: Mapping[str, str], *, log_is_error: bool
) -> Worker:
    """Start a process in a group of its own.

    Args:
        command: its program and arguments.
        log_path: where its standard output goes; the standard error goes beside it.
        reader: understands the log.
        environment: variables besides this process's.
        log_is_error: whether its standard error goes to the log, too.
    """
    name = log_path.stem
    variables = {**os.environ, **ONE_THREAD, **environment}
    with log_path.open("wb") as log, errors_path(log_path).open("wb") as errors:
        started_s = time.time()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log_is_error else errors,
            env=variables,
            start_new_session=True,
        )
    return Worker(name, process, log_path, reader, started_s)
