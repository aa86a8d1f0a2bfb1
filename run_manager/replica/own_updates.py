"""Updates that this client makes itself, of an outcome's results: where none comes in time, or none that is usable.

The bytes are those that anybody makes (`state/updates.py`). Results are fetched one after the other, so that the spool
holds a sum and one of them.
"""

from epochal.run_manager.exchange import Exchange
from epochal.runtime.files.spool import SpoolFile
from epochal.runtime.merging.merger import Merger
from epochal.state.documents import Outcome
from epochal.state.model.tensors import TensorLayout
from epochal.state.updates import UpdateHeader, Weight


class OwnUpdates:
    """Makes the updates of one run.

    Args:
        exchange: fetches results.
        merger: adds them up.
    """

    def __init__(self, exchange: Exchange, merger: Merger) -> None:
        self._exchange = exchange
        self._merger = merger

    async def make(self, outcome: Outcome, header: UpdateHeader, layout: TensorLayout) -> SpoolFile:
        """Return the file of an outcome's update.

        Args:
            outcome: names the results.
            header: of the update.
            layout: names and shapes of the model's parameters.

        Raises:
            Refused: `not-found`: the coordinator lacks a result.
            SpoolFull: the sum, a result or the update finds no room.
            Diverged: the mean is not finite; the same for everybody.
        """
        total = await self._merger.new_sum(layout)
        for entry in outcome.entries:
            file = await self._exchange.fetch(entry.result_sha256, entry.size_bytes)
            await self._merger.add(total, Weight.of(entry), file.view(), layout)
            self._exchange.forget([entry.result_sha256])
        return await self._merger.update(total, header, layout)
