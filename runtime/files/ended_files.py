"""Files that a spool no longer needs: removed in a separate thread, or kept for a while to be overwritten.

A large file takes long to remove, and a new one long to make: its blocks are to be found, and its pages to be cleared.
So a few large ones are spare: the next file of about their size takes one over, with the pages that the system holds of
it already. The rule kept here: spare files are given up whenever their room is needed, and when two rounds have passed
in which nobody wanted them.
"""

import contextlib
import itertools
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

MIN_SPARE_BYTES = 1024 * 1024
"""A smaller file is made as fast as it is taken over."""
MAX_SPARES = 64
MAX_RATIO = 2
"""A file takes over one that is at most this many times larger or smaller."""
MAX_AGE_ROUNDS = 2
REMOVAL_TIMEOUT_S = 30.0
"""Maximum time to wait for files to be removed."""


@dataclass(slots=True)
class _Spare:
    """A spare file, its size, and the rounds that have begun since it ended."""

    descriptor: int
    path: Path
    size_bytes: int
    age_rounds: int = 0


class EndedFiles:
    """The ended files of one spool. Nothing is spare, and nothing waits to be removed, before `start`."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._spares: dict[int, _Spare] = {}
        """Each call on it is atomic: files end wherever memory is collected, even within another call here."""
        self._queue: SimpleQueue[tuple[int, Path] | threading.Event | None] = SimpleQueue()
        """Files to be removed, events to be set when those before them are; None ends the thread."""
        self._thread: threading.Thread | None = None

    @property
    def spare_bytes(self) -> int:
        """Size of all spare files."""
        return sum(spare.size_bytes for spare in list(self._spares.values()))

    def start(self) -> None:
        """Start the thread that removes files."""
        self._thread = threading.Thread(target=self._remove_all, name="spool", daemon=True)
        self._thread.start()

    def end(self, descriptor: int, path: Path) -> None:
        """Take a file that is no longer used; return at once."""
        if self._thread is None:
            _remove(descriptor, path)
            return
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes < MIN_SPARE_BYTES or len(self._spares) >= MAX_SPARES:
            self._queue.put((descriptor, path))
        else:
            self._spares[next(self._numbers)] = _Spare(descriptor, path, size_bytes)

    def take(self, size_bytes: int) -> tuple[int, Path] | None:
        """Return the spare file whose size is nearest, with other bytes in it; None if none is of about this size."""
        while fitting := [
            (abs(spare.size_bytes - size_bytes), number)
            for number, spare in list(self._spares.items())
            if spare.size_bytes <= MAX_RATIO * size_bytes and size_bytes <= MAX_RATIO * spare.size_bytes
        ]:
            spare = self._spares.pop(min(fitting)[1], None)
            if spare is not None:  # nobody else was faster
                return spare.descriptor, spare.path
        return None

    def begin_round(self) -> None:
        """Give up the files that have been spare for `MAX_AGE_ROUNDS` rounds."""
        for number, spare in list(self._spares.items()):
            spare.age_rounds += 1
            if spare.age_rounds > MAX_AGE_ROUNDS:
                self._give_up(number)

    def give_up(self) -> bool:
        """Give up all spare files, and wait until they are removed; return whether there were any."""
        numbers = list(self._spares)
        for number in numbers:
            self._give_up(number)
        if numbers:
            self.settle()
        return bool(numbers)

    def settle(self) -> None:
        """Wait until the files that were to be removed so far are; bounded."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait(REMOVAL_TIMEOUT_S)

    def close(self) -> None:
        """Remove all files, and end the thread; bounded."""
        thread = self._thread
        if thread is not None:
            for number in list(self._spares):
                self._give_up(number)
            self._thread = None
            self._queue.put(None)
            thread.join(REMOVAL_TIMEOUT_S)

    def _give_up(self, number: int) -> None:
        spare = self._spares.pop(number, None)
        if spare is not None:
            self._queue.put((spare.descriptor, spare.path))

    def _remove_all(self) -> None:
        while (next_one := self._queue.get()) is not None:
            if isinstance(next_one, threading.Event):
                next_one.set()
            else:
                _remove(*next_one)


def _remove(descriptor: int, path: Path) -> None:
    os.close(descriptor)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
