"""Files that a spool no longer needs, removed in a separate thread: a large one takes long to remove."""

import contextlib
import os
import threading
from pathlib import Path
from queue import SimpleQueue

REMOVAL_TIMEOUT_S = 30.0
"""Maximum time to wait for files to be removed."""


class EndedFiles:
    """The ended files of one spool. Nothing waits to be removed before `start`."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, Path] | threading.Event | None] = SimpleQueue()
        """Files to be removed, events to be set when those before them are; None ends the thread."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that removes files."""
        self._thread = threading.Thread(target=self._remove_all, name="spool", daemon=True)
        self._thread.start()

    def end(self, descriptor: int, path: Path) -> None:
        """Take a file that is no longer used; return at once. Files end wherever memory is collected."""
        if self._thread is None:
            _remove(descriptor, path)
        else:
            self._queue.put((descriptor, path))

    def settle(self) -> None:
        """Wait until the files that were to be removed so far are; bounded."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait(REMOVAL_TIMEOUT_S)

    def close(self) -> None:
        """Remove all files, and end the thread; bounded."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(REMOVAL_TIMEOUT_S)

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
