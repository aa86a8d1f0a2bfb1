"""Reports to the coordinator that this client holds the replica and the data.

The rule kept here: a client reports once per Warmup and once per session, because each of them makes the coordinator
forget earlier reports; a client that is not in the roster also reports once per round. It does so when it can train: a
new one that was promised work (`merge.delay`) before it does this work.
"""

import asyncio
import logging

from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.description import description_of
from epochal.data_providers.protocol import DataProvider
from epochal.run_manager.events import BecameReady, Observer
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import Refused
from epochal.state.messages.requests import ReadyReport
from epochal.state.phase_names import ROUND_PHASES
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)


class Readiness:
    """This client's reports that it holds the replica and the data.

    Args:
        session: sends the reports.
        keeper: holds the replica.
        provider: this client's data.
        opening: the trainer.
        observer: receives `BecameReady`.

    Attributes:
        has_lost_run_data: whether the run was on this client's data before its newest document, and is not any more.
        is_new: whether this client has not been ready yet.
    """

    def __init__(
        self,
        session: CoordinatorSession,
        keeper: ReplicaKeeper,
        provider: DataProvider,
        opening: TrainerOpening,
        observer: Observer,
    ) -> None:
        self._session = session
        self._keeper = keeper
        self._provider = provider
        self._opening = opening
        self._last_round: RoundHead | None = None
        self._is_on_my_data = False
        self.has_lost_run_data = False
        self.is_new = True
        self._warned: str | None = None
        self._observer = observer
        self._reported: tuple[int, str] | None = None
        """The session, and the fingerprint of the data, of the last report that counts."""
        self._reporting = asyncio.Lock()

    def owe(self) -> None:
        """Note that the coordinator no longer considers this client ready."""
        self._reported = None

    async def apply_state(self, document: RunDocument) -> None:
        """Note whether the run is still on this client's data.

        If it is not any more, another report is owed: its refusal says how the data differ. A client that has seen the
        document's round before may be in its roster, and then reports only after the round; until then it warns with
        the fingerprints alone.
        """
        is_new_round = document.round != self._last_round
        self._last_round = document.round or self._last_round
        was_on_my_data = self._is_on_my_data
        self._is_on_my_data = document.data_fingerprint == self._provider.fingerprint
        self.has_lost_run_data = was_on_my_data and not self._is_on_my_data
        if not self.has_lost_run_data:
            return
        self.owe()
        if document.run_state in ROUND_PHASES and not is_new_round:
            now = document.data_fingerprint or "none yet"
            self._warn(
                f"the client's dataset has fingerprint {self._provider.fingerprint}, the run's now has {now}; "
                "how they differ is reported after the round"
            )

    async def ensure(self, step: int) -> None:
        """Report replica `step`, once it is held and this client can train it, unless the coordinator knows it already.

        Raises:
            InvalidDocument: the replica cannot be trained on.
            Refused: `fingerprint-differs`, which is final; `behind` or `not-now`, which end with the next document.
            Desync: the replica still differs after it was rebuilt several times.
        """
        async with self._reporting:
            while self._reported != (self._session.session_number, self._provider.fingerprint):
                held = await self._keeper.at(step)
                await self._opening.opened()
                await self._opening.check(held.replica)
                report = ReadyReport(held.step, held.digest, self._provider.fingerprint, description_of(self._provider))
                reported = self._session.session_number, report.data_fingerprint
                try:
                    await self._session.report(report)
                except Refused as refusal:
                    if refusal.kind is Refusal.DATA_UNDECIDED:  # recorded: if members come to agree, nothing is owed
                        self._reported = reported
                        self._warn(refusal.message)
                        continue
                    if refusal.kind is not Refusal.REPLICA_DIFFERS:
                        raise
                    if self._keeper.held is held:
                        self._keeper.distrust(refusal.message)
                    continue
                self._reported, self.is_new = reported, False
                self._warned = None
                self._observer(BecameReady(held.step))

    def _warn(self, message: str) -> None:
        if message != self._warned:
            self._warned = message
            log.warning("data_differs", extra={"detail": message})

    async def keep(self, step: int) -> None:
        """Report replica `step`, and again after every new session, until cancelled. Raises what `ensure` does."""
        while True:
            await self.ensure(step)
            await self._session.session_after(0 if self._reported is None else self._reported[0])
