"""What worker processes tell in their logs, as events of one shape for every system."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from benchmarks.training_peers.workload import TOKENS_PER_STEP


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a worker.

    Attributes:
        time_s: seconds since 1970, by the worker's clock, which is this machine's.
        kind: `imported`, or `applied`: the worker holds the model after one more step that it shares with others.
        step: the number of the applied step.
        members: workers whose training is in the step; 0 if the worker does not know.
        own: whether this worker's own training is in the step.
        tokens: tokens that this worker has trained so far in steps that were applied.
    """

    time_s: float
    kind: str
    step: int = 0
    members: int = 0
    own: bool = False
    tokens: int = 0


Translate = Callable[[dict[str, Any]], Event | None]
"""Returns the event of one JSON line, or None."""


def plain(line: dict[str, Any]) -> Event | None:
    """Return the event that a peer's worker told with `workload.tell`."""
    fields = {name: line[name] for name in ("step", "members", "own", "tokens") if name in line}
    return Event(line["time_s"], line["event"], **fields)


class EpochalEvents:
    """Translates the log lines of `epochal client --log-format json --verbose`.

    A client imports what its trainer needs while it joins, until the trainer is open. Whether its own result is in a
    step is settled before the client holds that step's replica.
    """

    def __init__(self) -> None:
        self._own = False
        self._trained = self._tokens = 0

    def __call__(self, line: dict[str, Any]) -> Event | None:
        """Return the event of one log line, or None."""
        match line["event"]:
            case "trainer_opened":
                return Event(line["time_s"], "imported")
            case "round_trained":
                self._trained = line["batch_count"] * TOKENS_PER_STEP
            case "result_settled":
                self._own = line["is_applied"]
            case "replica_held" if line["origin"] == "outcome":
                own, self._own = self._own, False
                self._tokens += self._trained if own else 0
                return Event(line["time_s"], "applied", line["step"], own=own, tokens=self._tokens)
        return None


class EventReader:
    """Reads the new lines of a growing log; lines that are no JSON objects are passed over."""

    def __init__(self, translate: Translate = plain) -> None:
        self._translate = translate
        self._offset = 0

    def read(self, log: BinaryIO) -> list[Event]:
        """Return the events of the whole lines since the last call."""
        log.seek(self._offset)
        data = log.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        events = []
        for line in data[:whole].splitlines():
            if not line.startswith(b"{"):
                continue
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # a killed process's last line may be cut by another's
            event = self._translate(fields)
            if event is not None:
                events.append(event)
        return events
