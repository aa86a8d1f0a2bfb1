"""`python -m benchmarks.training_peers.trial SYSTEM SETTINGS TOKENS FOLDER`: measure one run of one system.

Four workers train some rounds undisturbed. Then, again and again, one of them is killed at another moment of a round,
and a newcomer is started. Prints one JSON object. Meant to run in a network namespace of its own (`loopback.apart`).
"""

import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.training_peers.event_lines import Event
from benchmarks.training_peers.loopback import bring_up, sent_now_bytes
from benchmarks.training_peers.processes import Worker
from benchmarks.training_peers.systems import EPOCHAL, POLL_S, SYSTEMS, USUAL, System
from benchmarks.training_peers.workload import WORKERS
from epochal.state.errors import EpochalError

WARM_STEPS = 2
"""Applied steps of every worker before anything is measured."""
STEADY_STEPS = 8
REPEATS = {EPOCHAL: 5}
PEER_REPEATS = 3
REPEATS_BOUND_S = 130.0
"""No worker is killed any more after this time of a run's repetitions, if the machine is too slow for all of them."""
WAIT_BOUND_S = 60.0
"""Longest wait for a step after a kill, or for a newcomer: a figure of this size means that it did not come."""


@dataclass
class Trial:
    """What one run showed.

    Attributes:
        round_s: the median time between two applied steps.
        kills_s: seconds from each SIGKILL to the next applied step of a remaining worker.
        newcomers_s: seconds from each newcomer's start to the first applied step with its own training in it.
        imported_s: seconds of those until the newcomer had imported its modules; 0 if it did not take part in time.
        error: the message of an error that ended the run early.
    """

    tokens_per_s: float | None = None
    bytes_per_token: float | None = None
    round_s: float | None = None
    kills_s: list[float] = field(default_factory=list)
    newcomers_s: list[float] = field(default_factory=list)
    imported_s: list[float] = field(default_factory=list)
    error: str = ""


def kill_phases(count: int) -> list[float]:
    """Return the parts of a round after which workers are killed, spread evenly over it."""
    return [(number + 0.5) / count for number in range(count)]


def rate_of(workers: Sequence[Sequence[Event]]) -> float:
    """Return the tokens per second of all workers together, from the applied steps of each."""
    ends = [(steps[0], steps[-1]) for steps in workers if len(steps) > 1]
    return sum((last.tokens - first.tokens) / (last.time_s - first.time_s) for first, last in ends)


def round_of(steps: Sequence[Event]) -> float:
    """Return the median seconds between the applied steps of a worker."""
    return statistics.median(after.time_s - before.time_s for before, after in pairwise(steps))


class _Measurement:
    """One run of a system under way."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._running: list[Worker] = []
        self._next_number = 0
        self.trial = Trial()

    def start_worker(self) -> Worker:
        worker = self._system.start_worker(self._next_number)
        self._next_number += 1
        self._running.append(worker)
        return worker

    def steady(self) -> None:
        """Measure rounds in which nothing happens."""
        for _ in range(WORKERS):
            self.start_worker()
        self._wait(lambda: all(len(_together(worker)) >= WARM_STEPS for worker in self._running), 3 * WAIT_BOUND_S)
        counts = [len(worker.applied()) for worker in self._running]
        first = self._running[0]
        begin_s, begin_bytes = time.monotonic(), sent_now_bytes()
        self._wait(lambda: len(first.applied()) >= counts[0] + STEADY_STEPS, 3 * WAIT_BOUND_S)
        bytes_per_s = (sent_now_bytes() - begin_bytes) / (time.monotonic() - begin_s)
        steps = [worker.applied()[count - 1 :] for worker, count in zip(self._running, counts, strict=True)]
        self.trial.tokens_per_s = rate_of(steps)
        self.trial.bytes_per_token = bytes_per_s / self.trial.tokens_per_s
        self.trial.round_s = round_of(steps[0])

    def kill_one(self, phase: float) -> None:
        """Kill the oldest worker at this part of a round, and wait for the next applied step."""
        assert self.trial.round_s is not None
        self._after_a_step(time.time())
        time.sleep(phase * self.trial.round_s)
        victim = self._running.pop(0)
        killed_s = time.time()
        victim.kill()
        applied_s = self._after_a_step(killed_s)
        self.trial.kills_s.append(applied_s - killed_s)

    def start_newcomer(self) -> None:
        """Start a worker, and wait until a step with its own training is applied."""
        newcomer = self.start_worker()
        if not self._wait(lambda: any(step.own for step in newcomer.applied()), WAIT_BOUND_S):
            self.trial.newcomers_s.append(WAIT_BOUND_S)
            self.trial.imported_s.append(0.0)
            return
        took_part_s = next(step.time_s for step in newcomer.applied() if step.own)
        imported_s = next(event.time_s for event in newcomer.events if event.kind == "imported")
        self.trial.newcomers_s.append(took_part_s - newcomer.started_s)
        self.trial.imported_s.append(imported_s - newcomer.started_s)

    def _after_a_step(self, since_s: float) -> float:
        """Wait until a running worker has applied a step since then; return when the first one did."""

        def found() -> list[float]:
            return [step.time_s for worker in self._running for step in _applied_after(worker, since_s)]

        return min(found()) if self._wait(lambda: bool(found()), WAIT_BOUND_S) else since_s + WAIT_BOUND_S

    def _wait(self, condition: Callable[[], bool], bound_s: float) -> bool:
        """Wait until the condition holds; return whether it did in time.

        Raises:
            EpochalError: a worker ended by itself, or not one step was applied in time.
        """
        ends_s = time.monotonic() + bound_s
        while not condition():
            for worker in self._running:
                if not worker.running:
                    raise EpochalError(f"{worker.name} ended with {worker.process.returncode}:\n{worker.log_tail()}")
            if time.monotonic() > ends_s:
                if self.trial.tokens_per_s is None:
                    tails = "\n".join(worker.log_tail() for worker in self._running)
                    raise EpochalError(f"the workers applied too few steps in {bound_s:.0f} s:\n{tails}")
                return False
            time.sleep(POLL_S)
        return True


def _together(worker: Worker) -> list[Event]:
    return [step for step in worker.applied() if step.own and step.members in (0, WORKERS)]


def _applied_after(worker: Worker, since_s: float) -> list[Event]:
    return [step for step in worker.applied() if step.time_s > since_s]


def measure(name: str, settings: str, tokens: Path, folder: Path) -> Trial:
    """Measure one run. An error that ends it early is part of the result."""
    system = SYSTEMS[name](folder, tokens, settings)
    measurement = _Measurement(system)
    try:
        system.begin()
        measurement.steady()
        ends_s = time.monotonic() + REPEATS_BOUND_S
        for phase in kill_phases(REPEATS.get(name, PEER_REPEATS) if settings == USUAL else PEER_REPEATS):
            if time.monotonic() < ends_s:
                measurement.kill_one(phase)
                measurement.start_newcomer()
    except EpochalError as error:
        measurement.trial.error = str(error)
    finally:
        system.end()
    return measurement.trial


def main() -> None:
    """Measure, and print the result as JSON."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    name, settings, tokens, folder = sys.argv[1:5]
    if sys.argv[5:] == ["apart"]:
        bring_up()
    sys.stdout.write(json.dumps(asdict(measure(name, settings, Path(tokens), Path(folder)))) + "\n")


if __name__ == "__main__":
    main()
