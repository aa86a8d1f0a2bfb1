"""The trainers of a verifier: in its own class, and in others that are asked for."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from epochal.run_manager.context import ClientDependencies
from epochal.state.errors import InvalidInput
from epochal.tools.replays.replay import Replays, opened_replays
from epochal.tools.replays.session import FollowedRun, RoundSetup

log = logging.getLogger(__name__)

OPENED_AT_A_TIME = 2
"""Maximum number of trainers that are open."""

Opening = Callable[[str | None, int | None], ClientDependencies]
"""Returns what opens data and trainer: in a precision, and with so many rows at a time; None for each as it was chosen.
"""


class OpenedTrainers:
    """The trainers of one verifier, with the data of the rounds for which they were opened. Close it with `aclose`."""

    def __init__(self, run: FollowedRun, opening: Opening) -> None:
        self._run = run
        self._opening = opening
        self._opened: dict[tuple[RoundSetup, str | None, int | None], tuple[Replays, contextlib.AsyncExitStack]] = {}

    async def of(self, setup: RoundSetup, precision: str | None = None, micro_batch: int | None = None) -> Replays:
        """Return what computes rounds of this set-up. Raises as `opened_replays` and `Replays.check_data`."""
        setup = replace(setup, cold_start_step=None)  # on which nothing that is opened depends
        key = setup, precision, micro_batch
        found = self._opened.pop(key, None)
        if found is None:
            while len(self._opened) >= OPENED_AT_A_TIME:
                _, closing = self._opened.pop(next(iter(self._opened)))
                await closing.aclose()
            closing = contextlib.AsyncExitStack()
            access = await self._run.access(setup)
            opening = opened_replays(access, self._opening(precision, micro_batch))
            found = await closing.enter_async_context(opening), closing
        self._opened[key] = found
        document = self._run.document
        found[0].check_data(None if document is None else document.data_fingerprint)
        return found[0]

    async def wanted(self, setup: RoundSetup, wanted: str | None) -> Replays:
        """Return what computes in a class, if this machine has its precision; else in this verifier's own."""
        own = await self.of(setup)
        precision = None if wanted is None else wanted.partition("/")[0]
        if precision is None or own.computed.partition("/")[0] == precision:
            return own
        try:
            return await self.of(setup, precision)
        except InvalidInput as error:
            log.info("class_not_computed_here", extra={"wanted": wanted, "reason": error.message})
            return await self.of(setup)

    async def aclose(self) -> None:
        """Close all of them."""
        for _, closing in self._opened.values():
            await closing.aclose()
        self._opened.clear()
