"""The Witness step: results are no longer accepted; a witness attests what it holds before the phase ends."""

import asyncio
import logging

from epochal.run_manager.context import StepContext
from epochal.run_manager.round_view import round_of
from epochal.run_manager.steps.round_results import RoundResults
from epochal.state.documents import RunDocument

log = logging.getLogger(__name__)

WAITING_SHARE = 0.5
"""Share of the phase for which a witness waits for the missing results before it attests those that it holds."""


class WitnessStep:
    """RoundWitness of one round. `results` runs in its own task, and attests once it holds everything."""

    def __init__(self, context: StepContext, document: RunDocument, results: RoundResults) -> None:
        self._context = context
        self._head = round_of(document)
        self._results = results

    async def start(self) -> None:
        """Attest what is held, unless everything was attested before.

        Raises:
            Refused: the round is over; the next round is not affected.
        """
        try:
            async with asyncio.timeout(WAITING_SHARE * self._context.state.config.round_witness_time):
                await self._results.finished.wait()
        except TimeoutError:
            log.info("witness_time_short", extra={"step": self._head.step})
        await self._results.attest_what_is_held()
