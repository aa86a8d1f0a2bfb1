"""Ctrl-C and SIGTERM as events: the first asks a process to end, the second ends it."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


class Interrupts:
    """Counts SIGINT and SIGTERM. Use inside a running loop; `restore` when done."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, on_first: Callable[[], object], on_second: Callable[[], object]) -> None:
        self._callbacks = [on_first, on_second]
        self._loop = asyncio.get_running_loop()
        for number in self.SIGNALS:
            self._loop.add_signal_handler(number, self._interrupted)

    def _interrupted(self) -> None:
        if self._callbacks:
            self._callbacks.pop(0)()

    def restore(self) -> None:
        """Stop handling the signals."""
        for number in self.SIGNALS:
            self._loop.remove_signal_handler(number)


@contextlib.contextmanager
def interruption() -> Iterator[asyncio.Event]:
    """Give an event that the first SIGINT or SIGTERM sets. Enter before printing that the process serves."""
    stop = asyncio.Event()
    interrupts = Interrupts(stop.set, stop.set)
    try:
        yield stop
    finally:
        interrupts.restore()
