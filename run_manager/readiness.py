"""Reports to the coordinator that this client holds the replica and the data.

The rule kept here: a client reports once per Warmup and once per session, because each of them makes the coordinator
forget earlier reports; a client that is not in the roster also reports once per round.
"""

import asyncio

from coordinator_client.session import CoordinatorSession
from run_manager.events import BecameReady, Observer
from run_manager.replica.keeper import ReplicaKeeper
from state.errors import Refused
from state.messages import ReadyReport
from state.refusals import Refusal


class Readiness:
    """This client's reports that it holds the replica and the data.

    Args:
        session: sends the reports.
        keeper: holds the replica.
        data_fingerprint: of the dataset that this client's provider delivers.
        observer: receives `BecameReady`.
    """

    def __init__(
        self, session: CoordinatorSession, keeper: ReplicaKeeper, data_fingerprint: str, observer: Observer
    ) -> None:
        self._session = session
        self._keeper = keeper
        self._data_fingerprint = data_fingerprint
        self._observer = observer
        self._reported_session: int | None = None
        self._reporting = asyncio.Lock()

    def owe(self) -> None:
        """Note that the coordinator no longer considers this client ready."""
        self._reported_session = None

    async def ensure(self, step: int) -> None:
        """Report replica `step`, once it is held, unless the coordinator knows it already.

        Raises:
            Refused: `fingerprint-differs`, which is final; `behind` or `not-now`, which end with the next document.
            Desync: the replica still differs after it was rebuilt several times.
        """
        async with self._reporting:
            while self._reported_session != self._session.session_number:
                held = await self._keeper.at(step)
                report = ReadyReport(held.step, held.digest, self._data_fingerprint)
                number = self._session.session_number
                try:
                    await self._session.report(report)
                except Refused as refusal:
                    if refusal.kind is not Refusal.REPLICA_DIFFERS:
                        raise
                    if self._keeper.held is held:
                        self._keeper.distrust(refusal.message)
                    continue
                self._reported_session = number
                self._observer(BecameReady(held.step))

    async def keep(self, step: int) -> None:
        """Report replica `step`, and again after every new session, until cancelled. Raises what `ensure` does."""
        while True:
            await self.ensure(step)
            await self._session.session_after(self._reported_session or 0)
