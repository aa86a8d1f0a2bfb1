"""What this client makes an update of itself: where none comes in time, or none that is usable.

The bytes are those that anybody makes (`state/updates.py`). Results are fetched one after the other, so that the spool
holds a sum and one of them.
"""

from epochal.run_manager.exchange import Exchange
from epochal.runtime.merging.merger import Merger
from epochal.state.documents import Outcome
from epochal.state.model.tensors import TensorLayout
from epochal.state.updates import UpdateSum, Weight


class OwnUpdates:
    """Adds the results of one run up.

    Args:
        exchange: fetches results.
        merger: adds them up.
    """

    def __init__(self, exchange: Exchange, merger: Merger) -> None:
        self._exchange = exchange
        self._merger = merger

    async def summed(self, outcome: Outcome, layout: TensorLayout) -> UpdateSum:
        """Return the sum of an outcome's results, of which the update is made.

        Args:
            outcome: names the results.
            layout: names and shapes of the model's parameters.

        Raises:
            Refused: `not-found`: the coordinator lacks a result.
            SpoolFull: the sum or a result finds no room.
        """
        total = await self._merger.new_sum(outcome.step, layout)
        for entry in outcome.entries:
            file = await self._exchange.fetch(entry.result_sha256, entry.size_bytes)
            await self._merger.add(total, Weight.of(entry), file.view(), layout)
            self._exchange.forget([entry.result_sha256])
        return total
