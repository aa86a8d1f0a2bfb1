"""Says that this process slept: the machine was suspended, or the process stopped (SIGSTOP), and for how long.

The rule kept here: a process that computed did not sleep, however late its event loop is.
"""

import asyncio
import logging
import time
from typing import NamedTuple

log = logging.getLogger(__name__)

TICK_S = 2.0
MIN_SLEEP_S = 10.0
"""Shorter times are not reported."""
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that runs while the machine is suspended; on macOS `CLOCK_MONOTONIC` is one, and Python's own is not."""


class Clocks(NamedTuple):
    """Seconds since boot with times of suspension, seconds without those, and the processor time of this process."""

    boot_s: float
    monotonic_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> "Clocks":
        """Return the times of the system's clocks."""
        return cls(time.clock_gettime(_BOOT_CLOCK), time.monotonic(), time.process_time())


class Slept(NamedTuple):
    """A sleep of the process, in seconds, and whether the whole machine slept."""

    slept_s: float
    of_machine: bool


def slept_between(before: Clocks, after: Clocks) -> Slept | None:
    """Return the sleep between two looks that should have been `TICK_S` apart, or None if there was none."""
    slept_s = after.boot_s - before.boot_s - TICK_S
    computed_s = after.cpu_s - before.cpu_s
    if slept_s < MIN_SLEEP_S or computed_s > slept_s / 2:
        return None
    suspended_s = (after.boot_s - before.boot_s) - (after.monotonic_s - before.monotonic_s)
    return Slept(slept_s, suspended_s > slept_s / 2)


async def notice_sleep() -> None:
    """Log each sleep once it is over, until cancelled."""
    before = Clocks.now()
    while True:
        await asyncio.sleep(TICK_S)
        after = Clocks.now()
        slept = slept_between(before, after)
        if slept is not None:
            whose = "the machine slept" if slept.of_machine else "this process was stopped"
            log.warning(
                "was_asleep", extra={"slept_s": round(slept.slept_s), "reason": whose, "consequence": "it goes on"}
            )
        before = after
