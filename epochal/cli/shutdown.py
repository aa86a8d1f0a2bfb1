"""Ctrl-C and SIGTERM as events: the first asks a process to end, the second ends it."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


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


@contextlib.contextmanager
def interruption() -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT and SIGTERM set. Enter before printing that the process is ready."""
    stop = asyncio.Event()
    interrupts = Interrupts(stop.set, stop.set)
    try:
        yield stop
    finally:
        interrupts.restore()
