"""Ctrl-C and SIGTERM as events: the first asks a process to end, the second ends it."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

EXIT_INTERRUPTED = 130
"""Exit code of a process that is ended from within because it did not end when asked: as a shell shows for Ctrl-C."""


class Interrupts:
    """Handles SIGINT and SIGTERM in a running event loop, until `restore` is called; `count` of them arrived."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, on_first: Callable[[], object], on_second: Callable[[], object]) -> None:
        self.count = 0
        self._callbacks = (on_first, on_second)
        self._loop = asyncio.get_running_loop()
        for number in self.SIGNALS:
            self._loop.add_signal_handler(number, self._interrupted)

    def _interrupted(self) -> None:
        self.count += 1
        if self.count <= len(self._callbacks):
            self._callbacks[self.count - 1]()

    def restore(self) -> None:
        """Stop handling the signals."""
        for number in self.SIGNALS:
            self._loop.remove_signal_handler(number)


def end_at_next_signal() -> None:
    """Let the next SIGINT or SIGTERM end this process as the system does by default."""
    for number in Interrupts.SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def end_within(bound_s: float) -> None:
    """End this process after `bound_s` seconds if it still runs then, because a thread of it blocks."""
    timer = threading.Timer(bound_s, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    logging.getLogger(__name__).warning("ended_while_a_thread_was_busy")
    logging.shutdown()
    os._exit(EXIT_INTERRUPTED)


@contextlib.contextmanager
def interruption() -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT and SIGTERM set. Enter before printing that the process is ready."""
    stop = asyncio.Event()
    interrupts = Interrupts(stop.set, stop.set)
    try:
        yield stop
    finally:
        interrupts.restore()
