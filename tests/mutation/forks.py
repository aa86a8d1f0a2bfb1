"""Calls in forked processes, a few at a time: each sees the parent's modules as they are, and changes only its own."""

import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")

MAX_MEMORY_BYTES = 4 << 30
"""Address space of a fork: a changed loop that gathers without end fails instead of filling the machine."""
BROKEN = 3
"""Exit status of a fork whose call raised: the tool is broken, and nothing was found out."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[Key]):
    """A call that has ended: whether it returned True in its time, and how long it took."""

    key: Key
    is_true: bool
    duration_s: float


def in_forks(calls: Iterable[tuple[Key, Callable[[], bool]]], jobs: int, max_cpu_s: float) -> Iterator[Ended[Key]]:
    """Yield the calls' results as they become known. A call that takes longer, or crashes, has not returned True."""
    running: dict[int, tuple[Key, float]] = {}
    for key, call in calls:
        if len(running) >= jobs:
            yield _reaped(running)
        pid = os.fork()
        if pid == 0:
            _run(call, max_cpu_s)
        running[pid] = key, time.monotonic()
    while running:
        yield _reaped(running)


def silence() -> None:
    """Let this process print errors only."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)


def _run(call: Callable[[], bool], max_cpu_s: float) -> None:
    status = BROKEN
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        silence()
        status = 0 if call() else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _reaped(running: dict[int, tuple[Key, float]]) -> Ended[Key]:
    pid, status = os.wait()
    key, started_s = running.pop(pid)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == BROKEN:
        raise RuntimeError(f"the tests could not be run on {key}")
    return Ended(key, status == 0, time.monotonic() - started_s)
