"""Run `epochal` with a wall clock that a test steps: `python -m tests.chaos.stepped_clock FILE ARGUMENTS…`.

FILE holds the number of seconds by which the clock is wrong, and is read whenever the time is asked for. The monotonic
clock stays, as it does when an administrator or NTP sets the time of a real machine.
"""

import datetime
import sys
import time
from pathlib import Path


def step_clock(offset: Path) -> None:
    """Make `time.time` and `datetime.now` of this process wrong by the file's seconds."""
    real_time, real_datetime = time.time, datetime.datetime

    def stepped_time() -> float:
        return real_time() + float(offset.read_text() or 0)

    class SteppedDatetime(real_datetime):  # type: ignore[valid-type, misc]
        """`datetime`, as the stepped clock has it."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return real_datetime.fromtimestamp(stepped_time(), tz)

    time.time = stepped_time
    datetime.datetime = SteppedDatetime  # type: ignore[misc]


def main() -> None:
    """Step the clock of this process, then run the command line."""
    step_clock(Path(sys.argv[1]))
    sys.argv = ["epochal", *sys.argv[2:]]
    from epochal.cli.main import main as epochal

    epochal()


if __name__ == "__main__":
    main()
