"""The results of the present round, as a witness fetches them as they arrive, for the merge, and attests them.

One task per round follows the coordinator's list of verified results from RoundTrain into RoundWitness and fetches each
result. When the list is complete and all of it is held, the witness attests. When time runs out the Witness step
attests those that are held; another attestation may follow with more. A client that is not elected does not follow the
list: it learns from the run document that there is an outcome, which names the results.
"""

import asyncio
import logging

from epochal.coordinator_client.api import ResultsQuery
from epochal.run_manager.context import StepContext
from epochal.run_manager.events import Attested
from epochal.run_manager.round_view import RoundView
from epochal.state.documents import RoundHead
from epochal.state.errors import Refused
from epochal.state.messages.requests import Attestation, CommittedResult
from epochal.state.messages.result_bundles import PageAndBytes
from epochal.state.refusals import Retry
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)

MAX_PENDING_FETCHES = 64


class RoundResults:
    """The results of one round that this client holds."""

    def __init__(self, context: StepContext, head: RoundHead) -> None:
        self._context = context
        self._head = head
        self._known: dict[ClientId, CommittedResult] = {}
        self._received: set[ClientId] = set()
        self._attested: frozenset[ClientId] | None = None
        self._attesting = asyncio.Lock()
        self.finished = asyncio.Event()

    async def run(self) -> None:
        """Follow the round, as a witness, until its list is complete, fetch all of it, and attest."""
        self._context.exchange.begin_round()
        try:
            view = await self._context.rounds.of(self._head)
            if self._context.session.client_id not in view.witnesses:
                return
            complete = await self._follow()
            if complete and self._known and self._received == self._known.keys():
                await self._expect_outcome(view)
                await self.attest_what_is_held()
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("round_results_over", extra={"step": self._head.step, "kind": refusal.kind})
        finally:
            self.finished.set()

    async def attest_what_is_held(self) -> None:
        """Attest the results that are held, if this client is a witness and has not attested the same before.

        Raises:
            Refused: `stale-round`, when the round is over.
        """
        context, head = self._context, self._head
        view = await context.rounds.of(head)
        if context.session.client_id not in view.witnesses:
            return
        held = await context.keeper.at(head.step - 1)
        async with self._attesting:
            received = frozenset(self._received)
            if received == self._attested:
                return
            bits = sum(1 << view.positions[client_id] for client_id in received)
            attestation = Attestation(head.step, head.attempt, held.digest, f"{bits:x}")
            now_s = context.dependencies.retry_policy.clock.monotonic_s
            began_s = now_s()
            counts = len(received), len(self._known)
            try:
                await context.session.report(attestation)
                self._attested = received
            except asyncio.CancelledError:  # by the outcome, which often comes before the answer of the last witness
                context.dependencies.observer(Attested(head.step, head.attempt, *counts, now_s() - began_s))
                raise
            context.dependencies.observer(Attested(head.step, head.attempt, *counts, now_s() - began_s))

    async def _expect_outcome(self, view: RoundView) -> None:
        """Tell the replica's keeper the outcome if others attest what this client does: it need not be asked for."""
        context = self._context
        held = await context.keeper.at(self._head.step - 1)
        outcome = view.outcome_with(context.state, held.digest, self._known)
        if outcome is not None:
            context.keeper.expect(outcome)

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
                    self._context.exchange.arrived(sha256, data)
                for result in page.results:
                    self._known[result.client_id] = result
                    await slots.acquire()
                    group.create_task(self._receive(result, slots))
                after = page.next
                if page.complete:
                    return True

    async def _page(self, after: int) -> PageAndBytes | None:
        query = ResultsQuery(self._head.step, self._head.attempt, after, self._context.session.wait_s)
        try:
            return await self._context.session.results(query)
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.info("round_results_over", extra={"step": self._head.step, "kind": refusal.kind})
            return None

    async def _receive(self, result: CommittedResult, slots: asyncio.Semaphore) -> None:
        try:
            await self._context.exchange.fetch(result.result_sha256, result.size_bytes)
            self._received.add(result.client_id)
        except Refused as refusal:
            log.warning(
                "result_not_fetched",
                extra={"sha256": result.result_sha256, "kind": refusal.kind, "reason": refusal.message},
            )
        finally:
            slots.release()
