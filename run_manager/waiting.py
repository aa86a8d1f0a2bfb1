"""Logs what a client waits for: at once if only people can end the wait, and with a warning once it takes long.

The rule kept here: a wait is named once at each level. `run_manager/replica/keeper.py` names missing blobs.
"""

import asyncio
import logging

from epochal.state.documents import RunDocument
from epochal.state.phase_names import RunState
from epochal.state.shown.waiting_words import WAITS_FOR_PEOPLE, awaited_by

log = logging.getLogger(__name__)

WAIT_WARNING_S = 60.0
"""Time after which a client warns that it still waits for the same thing."""


class WaitingNotice:
    """Follows the run documents of one client. Call `close` at the end."""

    def __init__(self) -> None:
        self._phase: RunState | None = None
        self._awaited: str | None = None
        self._warning: asyncio.TimerHandle | None = None

    def saw(self, document: RunDocument) -> None:
        """Take a newer run document. If it waits for something else than before, the time starts again."""
        now_awaited, before = awaited_by(document), self._phase
        self._phase = document.run_state
        if self._phase in WAITS_FOR_PEOPLE and self._phase is not before:
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
