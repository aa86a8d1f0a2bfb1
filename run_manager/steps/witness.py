"""The Witness step: no result is accepted any more; a witness says what it holds before the phase closes."""

import asyncio
import logging

from run_manager.context import StepContext
from run_manager.round_view import round_of
from run_manager.steps.round_results import RoundResults
from state.documents import RunDocument

log = logging.getLogger(__name__)

WAITING_SHARE = 0.5
"""Share of the phase for which a witness waits for the missing results before it attests those that it holds."""


class WitnessStep:
    """RoundWitness of one round. `results` goes on by itself and attests once it holds everything."""

    def __init__(self, context: StepContext, document: RunDocument, results: RoundResults) -> None:
        self._context = context
        self._head = round_of(document)
        self._results = results

    async def start(self) -> None:
        """Attest what is held, unless everything was attested before.

        Raises:
            Refused: the round is over; nothing is lost by it.
        """
        try:
            async with asyncio.timeout(WAITING_SHARE * self._context.state.config.round_witness_time):
                await self._results.finished.wait()
        except TimeoutError:
            log.info("witness_time_short", extra={"step": self._head.step})
        await self._results.attest_what_is_held()
