"""Coordinators that end while they make an update, each at another point.

As a program, `python -m tests.support.drive.killed_makers POINT coordinator …` is a coordinator that is killed there.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from epochal.coordinator.blobs import update_maker
from epochal.coordinator.blobs.update_maker import UpdateMaker
from epochal.coordinator.store.checkpoint_blobs import keep_in_parts
from epochal.runtime.merging import merger
from epochal.state import checkpoint_parts

BEFORE, AFTER = False, True
METHODS: dict[str, tuple[str, bool]] = {
    "before the sum": ("_new_sum", BEFORE),
    "after the sum has its room": ("_new_sum", AFTER),
    "after a result": ("_add_to", AFTER),
    "after the last result": ("_sum_of", AFTER),
    "before the update": ("_made", BEFORE),
    "before the record": ("_check_lineage", BEFORE),
    "after the record": ("_tell_likenesses", BEFORE),
}
"""The method of the maker at each point."""
PART = "after a part of the update"
POINTS = (*METHODS, PART)
SetAttribute = Callable[[object, str, object], None]


def act_at(point: str, act: Callable[[], None], change: SetAttribute = setattr) -> None:
    """Have makers of this process act whenever they come to a point; each result is then added in a turn of its own."""
    change(update_maker, "TOGETHER_BYTES", 0)
    if point == PART:
        _act_at_parts(act, change)
        return
    name, is_after = METHODS[point]
    method = getattr(UpdateMaker, name)

    @wraps(method)
    async def acting(self: UpdateMaker, *given: Any) -> Any:
        if not is_after:
            act()
        found = await method(self, *given)
        if is_after:
            act()
        return found

    @wraps(method)
    def acting_at_once(self: UpdateMaker, *given: Any) -> Any:
        act()
        return method(self, *given)

    change(UpdateMaker, name, acting if iscoroutinefunction(method) else acting_at_once)


def _act_at_parts(act: Callable[[], None], change: SetAttribute) -> None:
    keep = keep_in_parts
    change(merger, "MERGED_IN_MEMORY_BYTES", 0)
    change(update_maker, "MAX_DELIVERED_BYTES", 0)
    change(checkpoint_parts, "UPDATE_PART_BYTES", 200)

    async def kept(*given: Any) -> AsyncIterator[Any]:
        async for part in keep(*given):
            act()
            yield part

    change(update_maker, "keep_in_parts", kept)


def main() -> None:
    """Be a coordinator that is killed at a point, for which the first argument is a name."""
    from epochal.cli.main import main as epochal

    act_at(sys.argv.pop(1), lambda: os.kill(os.getpid(), signal.SIGKILL))
    sys.argv[0] = "epochal"
    epochal()


if __name__ == "__main__":
    main()
