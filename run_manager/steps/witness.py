"""The witness's part of a round: it follows the list of verified results, and attests those that came in time.

One task per round follows the coordinator's list from RoundTrain into RoundWitness; the results themselves stay there,
since what is applied is their mean. When the list is complete, the witness attests. In RoundWitness results are no
longer accepted: when half of its time is over, the Witness step attests those that are listed; another attestation may
follow with more. A client that is not elected does not follow the list: it learns from the run document that there is
an outcome.
"""

import asyncio
import logging
from dataclasses import dataclass

from epochal.coordinator_client.api import ResultsQuery
from epochal.coordinator_client.session import CoordinatorSession
from epochal.run_manager.context import FollowedConfig
from epochal.run_manager.events import Attested, Observer
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.round_view import RoundViews
from epochal.runtime.background_task import BackgroundTask
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import Refused
from epochal.state.messages.requests import Attestation
from epochal.state.refusals import Retry
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)

WAITING_SHARE = 0.5
"""Share of the phase for which a witness waits for the missing results before it attests those that are listed."""


@dataclass(frozen=True, slots=True)
class WitnessUses:
    """The parts of a client that a witness uses."""

    session: CoordinatorSession
    config: FollowedConfig
    rounds: RoundViews
    keeper: ReplicaKeeper
    exchange: Exchange
    observer: Observer


class WitnessedResults:
    """The results of one round that are listed as verified.

    Attributes:
        head: the round.
        finished: set when this client owes the round no attestation any more.
    """

    def __init__(self, uses: WitnessUses, head: RoundHead) -> None:
        self._uses = uses
        self.head = head
        self._listed: set[ClientId] = set()
        self._attested: frozenset[ClientId] | None = None
        self._attesting = asyncio.Lock()
        self.finished = asyncio.Event()

    async def run(self) -> None:
        """Follow the round, as a witness, until its list is complete, and attest."""
        self._uses.exchange.begin_round()
        try:
            view = await self._uses.rounds.of(self.head)
            if self._uses.session.client_id not in view.witnesses:
                return
            await self._follow()
            if self._listed:
                await self.attest_what_is_listed()
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("round_results_over", extra={"step": self.head.step, "kind": refusal.kind})
        finally:
            self.finished.set()

    async def attest_what_is_listed(self) -> None:
        """Attest the results that are listed, if this client is a witness and has not attested the same results before.

        Raises:
            Refused: `stale-round`, when the round is over.
        """
        uses, head = self._uses, self.head
        view = await uses.rounds.of(head)
        if uses.session.client_id not in view.witnesses:
            return
        held, loop = await uses.keeper.at(head.step - 1), asyncio.get_running_loop()
        async with self._attesting:
            received = frozenset(self._listed)
            if received == self._attested:
                return
            bits = sum(1 << view.positions[client_id] for client_id in received)
            attestation = Attestation(head.step, head.attempt, held.digest, f"{bits:x}")
            began_s = loop.time()

            def attested() -> None:
                uses.observer(Attested(head.step, head.attempt, len(received), loop.time() - began_s))

            try:
                await uses.session.report(attestation)
            except asyncio.CancelledError:  # by the outcome, which often comes before the answer to the last witness
                attested()
                raise
            self._attested = received
            attested()

    async def _follow(self) -> None:
        """Follow the list of results to its end. Raises `Refused` (`stale-round`) when the round is over."""
        after, is_complete, session = 0, False, self._uses.session
        while not is_complete:
            page = await session.results(ResultsQuery(self.head.step, self.head.attempt, after, session.wait_s))
            self._listed.update(ClientId(result.client_id) for result in page.results)
            after, is_complete = page.next, page.complete


class WitnessStep:
    """The Witness step, and the task that follows the results of the round.

    Args:
        uses: the parts of the client.
        group: runs the task; it must outlive this.

    Attributes:
        results: of the present round; None without one.
    """

    def __init__(self, uses: WitnessUses, group: asyncio.TaskGroup) -> None:
        self._uses = uses
        self._task = BackgroundTask(group, "round results")
        self.results: WitnessedResults | None = None

    async def follow(self, head: RoundHead | None) -> None:
        """Follow the results of this round from now on, and of no other."""
        if head is None:
            self.results = None
            await self._task.replace(None)
        elif self.results is None or head != self.results.head:
            self.results = WitnessedResults(self._uses, head)
            await self._task.replace(self.results.run())

    async def start(self, document: RunDocument) -> None:
        """Attest the results that are listed, unless all were attested before.

        Raises:
            Refused: the round is over; the next round is not affected.
        """
        results = self.results
        assert results is not None, f"the results of a round are followed in {document.run_state.value}"
        try:
            async with asyncio.timeout(WAITING_SHARE * self._uses.config.state.config.round_witness_time):
                await results.finished.wait()
        except TimeoutError:
            log.info("witness_time_short", extra={"step": results.head.step})
        await results.attest_what_is_listed()
