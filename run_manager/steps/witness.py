"""The witness's part of a round: it fetches the results of the round as they arrive, and attests those that it holds.

One task per round follows the coordinator's list of verified results from RoundTrain into RoundWitness and fetches each
result. When the list is complete and all of it is held, the witness attests. In RoundWitness results are no longer
accepted: when half of its time is over, the Witness step attests those that are held; another attestation may follow
with more. A client that is not elected does not follow the list: it learns from the run document that there is an
outcome, which names the results.
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
from epochal.state.messages.requests import Attestation, CommittedResult
from epochal.state.messages.result_bundles import PageAndBytes
from epochal.state.refusals import Retry
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)

WAITING_SHARE = 0.5
"""Share of the phase for which a witness waits for the missing results before it attests those that it holds."""
MAX_PENDING_FETCHES = 64


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
    """The results of one round that this client holds.

    Attributes:
        head: the round.
        finished: set when this client owes the round no attestation any more.
    """

    def __init__(self, uses: WitnessUses, head: RoundHead) -> None:
        self._uses = uses
        self.head = head
        self._known: dict[ClientId, CommittedResult] = {}
        self._received: set[ClientId] = set()
        self._attested: frozenset[ClientId] | None = None
        self._attesting = asyncio.Lock()
        self.finished = asyncio.Event()

    async def run(self) -> None:
        """Follow the round, as a witness, until its list is complete, fetch all of it, and attest."""
        self._uses.exchange.begin_round()
        try:
            view = await self._uses.rounds.of(self.head)
            if self._uses.session.client_id not in view.witnesses:
                return
            complete = await self._follow()
            if complete and self._known and self._received == self._known.keys():
                await self.attest_what_is_held()
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("round_results_over", extra={"step": self.head.step, "kind": refusal.kind})
        finally:
            self.finished.set()

    async def attest_what_is_held(self) -> None:
        """Attest the results that are held, if this client is a witness and has not attested the same results before.

        Raises:
            Refused: `stale-round`, when the round is over.
        """
        uses, head = self._uses, self.head
        view = await uses.rounds.of(head)
        if uses.session.client_id not in view.witnesses:
            return
        held, loop = await uses.keeper.at(head.step - 1), asyncio.get_running_loop()
        async with self._attesting:
            received = frozenset(self._received)
            if received == self._attested:
                return
            bits = sum(1 << view.positions[client_id] for client_id in received)
            attestation = Attestation(head.step, head.attempt, held.digest, f"{bits:x}")
            began_s, counts = loop.time(), (len(received), len(self._known))

            def attested() -> None:
                uses.observer(Attested(head.step, head.attempt, *counts, loop.time() - began_s))

            try:
                await uses.session.report(attestation)
            except asyncio.CancelledError:  # by the outcome, which often comes before the answer to the last witness
                attested()
                raise
            self._attested = received
            attested()

    async def _follow(self) -> bool:
        """Follow the list of results; return whether it was followed to its end."""
        slots = asyncio.Semaphore(MAX_PENDING_FETCHES)
        after = 0
        async with asyncio.TaskGroup() as group:
            while True:
                found = await self._page(after)
                if found is None:
                    return False
                page, blobs = found
                for sha256, data in blobs.items():
                    self._uses.exchange.arrived(sha256, data)
                for result in page.results:
                    self._known[result.client_id] = result
                    await slots.acquire()
                    group.create_task(self._receive(result, slots))
                after = page.next
                if page.complete:
                    return True

    async def _page(self, after: int) -> PageAndBytes | None:
        query = ResultsQuery(self.head.step, self.head.attempt, after, self._uses.session.wait_s)
        try:
            return await self._uses.session.results(query)
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("round_results_over", extra={"step": self.head.step, "kind": refusal.kind})
            return None

    async def _receive(self, result: CommittedResult, slots: asyncio.Semaphore) -> None:
        try:
            await self._uses.exchange.fetch(result.result_sha256, result.size_bytes)
            self._received.add(result.client_id)
        except Refused as refusal:
            log.warning(
                "result_not_fetched",
                extra={"sha256": result.result_sha256, "kind": refusal.kind, "reason": refusal.message},
            )
        finally:
            slots.release()


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
        """Attest the results that are held, unless all were attested before.

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
        await results.attest_what_is_held()
