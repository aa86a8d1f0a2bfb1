"""Fetches the samples of the provisional next round, while the present one ends.

It is no step: steps go on meanwhile. The run document says what the next round is if nothing is lost; a document that
names another one ends the fetching for the former. What is fetched is held in
`data_providers/next_round_samples.py`, from which the training step takes what its real assignment has.
"""

import asyncio
import logging

from epochal.data_providers.fetcher import FetchSettings, plan_requests
from epochal.data_providers.next_round_samples import AheadLimits
from epochal.run_manager.context import StepContext
from epochal.runtime.background_task import BackgroundTask
from epochal.state.documents import RoundAhead, RunDocument
from epochal.state.errors import EpochalError
from epochal.state.wire import Seed

log = logging.getLogger(__name__)


class DataAhead:
    """One client's fetching ahead.

    Args:
        group: runs it; it must outlive this.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._task = BackgroundTask(group, "data ahead")
        self._due: tuple[Seed, RoundAhead] | None = None

    async def follow(self, context: StepContext, document: RunDocument) -> None:
        """Fetch for the provisional round that the document names, after the present round's own samples."""
        due = None if document.round is None or document.ahead is None else (document.round.seed, document.ahead)
        if due == self._due:
            return
        self._due = due
        await self._task.replace(None if due is None else self._fetch(context, *due))

    async def stop(self) -> None:
        """Fetch nothing more."""
        self._due = None
        await self._task.replace(None)

    async def _fetch(self, context: StepContext, seed: Seed, ahead: RoundAhead) -> None:
        opened = await context.opening.opened()
        await context.ahead.wait_for_turn()
        limits = AheadLimits.of(context.state, context.provider, context.dependencies.ahead_bytes)
        if opened.trainer.loads_data or not limits.max_bytes:
            return
        try:
            assigned = await context.rounds.ahead_of(ahead, seed, context.session.client_id)
        except EpochalError as error:  # a hint that cannot be had; whatever is the matter, a step says it
            log.debug("nothing_known_ahead", extra={"reason": str(error)})
            return
        await context.ahead.fetch(plan_requests(assigned, FetchSettings.of(context.state)), limits)
