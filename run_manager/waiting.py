"""Logs what a client waits for: at once if only people can end the wait, and with a warning once it takes long.

The rule kept here: a wait is named once at each level. `run_manager/replica/keeper.py` names missing blobs.
"""

import asyncio
import logging

from epochal.state.documents import RunDocument
from epochal.state.phase_names import ROUND_PHASES, RunState

log = logging.getLogger(__name__)

WAIT_WARNING_S = 60.0
"""Time after which a client warns that it still waits for the same thing."""

_PEOPLE = {
    RunState.UNINITIALIZED: "the run's start",
    RunState.WAITING_FOR_MEMBERS: "more members",
    RunState.PAUSED: "an operator, who must resume the run",
}
"""Phases that end when people act, and the act."""


def awaited(document: RunDocument) -> str | None:
    """Return what the run waits for, as a phrase; None while rounds go on, and after the end."""
    phase = document.run_state
    if phase in _PEOPLE:
        return f"{_PEOPLE[phase]} ({document.reason})"
    if phase is RunState.WARMUP and document.checkpoint is None:
        return "the run's first model, which its operator or an elected member delivers"
    if phase is RunState.WARMUP:
        return "members, until enough of them are ready"
    return None if phase in ROUND_PHASES or phase is RunState.FINISHED else "the epoch's checkpoint"


class WaitingNotice:
    """Follows the run documents of one client. Call `close` at the end."""

    def __init__(self) -> None:
        self._phase: RunState | None = None
        self._awaited: str | None = None
        self._warning: asyncio.TimerHandle | None = None

    def saw(self, document: RunDocument) -> None:
        """Take a newer run document. If it waits for something else than before, the time starts again."""
        now_awaited, before = awaited(document), self._phase
        self._phase = document.run_state
        if self._phase in _PEOPLE and self._phase is not before:
            log.info("waits", extra={"for": now_awaited})
        if now_awaited != self._awaited:
            self.close()
            self._awaited = now_awaited
            if now_awaited is not None:
                self._warning = asyncio.get_running_loop().call_later(WAIT_WARNING_S, self._warn)

    def close(self) -> None:
        """Give no further warning."""
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None

    def _warn(self) -> None:
        log.warning("still_waits", extra={"for": self._awaited, "waited_s": WAIT_WARNING_S})
