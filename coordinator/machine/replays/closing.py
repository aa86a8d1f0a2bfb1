"""The end of open replays, whatever ends them."""

from collections.abc import Iterable
from dataclasses import replace

from epochal.coordinator.machine.parts.persistent_map import removed
from epochal.coordinator.machine.parts.verification import OpenReplay, Verification


def closed(verification: Verification, replays: Iterable[OpenReplay]) -> Verification:
    """Return the verification without these open replays."""
    is_open = verification.open
    for one in replays:
        is_open = removed(is_open, one.key)
    return replace(verification, open=is_open)
