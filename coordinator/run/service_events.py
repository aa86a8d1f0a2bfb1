"""Events of a service, for whoever watches it."""

from dataclasses import dataclass
from typing import TypeAlias

from epochal.coordinator.machine.instructions import Instruction


@dataclass(frozen=True, slots=True)
class GroupKept:
    """One journal record was written, in `append_s` seconds."""

    append_s: float


ServiceEvent: TypeAlias = Instruction | GroupKept
"""Events of a service for its watcher."""
