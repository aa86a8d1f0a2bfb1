"""The Training step: from the run document's round to a published result, or to a reported failure.

With `merge.delay` the result may be there already, or be on its way, because the work was promised one round before
(`run_manager/eager_training.py`). As soon as it is, training for the next round begins, beside the upload.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.fetcher import failure_kind
from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.context import FollowedConfig
from epochal.run_manager.eager_training import EagerTraining
from epochal.run_manager.events import PartBegan, RoundFailed
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.local_training import Failure, OwnResult, RoundTraining, RoundWork, TrainingStart
from epochal.run_manager.own_results import OwnResults
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.round_view import RoundView, RoundViews, round_of
from epochal.run_manager.steps.failure_texts import reported_failure
from epochal.state.documents import RunDocument
from epochal.state.errors import DataError, FailureKind, Refused, TrainerFailed
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.requests import MAX_MESSAGE_CHARS, FailureReport
from epochal.state.refusals import Refusal
from epochal.state.text.visible import visible
from epochal.state.wire import Sha256
from epochal.trainers.learner import NOT_FINITE

log = logging.getLogger(__name__)

UNDELIVERED_KINDS = frozenset(
    {
        Refusal.ALREADY_COMMITTED,
        Refusal.BLOBS_FULL,
        Refusal.BLOB_TOO_LARGE,
        Refusal.BLOB_MISMATCH,
        Refusal.BODY_INCOMPLETE,
        Refusal.BODY_TIMEOUT,
    }
)
"""Refusals after which the coordinator goes on waiting for the result, until the client reports a failure.

`already-committed`: this client committed to other bytes before it was killed, and no longer has them.
"""


@dataclass(slots=True, eq=False)
class TrainingStepMetadata:
    """The Training step, with the parts of the client that it uses; `times` measures it from outside.

    Attributes:
        delivered: set when the round's result was published, or a failure reported.
    """

    session: CoordinatorSession
    config: FollowedConfig
    rounds: RoundViews
    readiness: Readiness
    training: RoundTraining
    eager: EagerTraining
    keeper: ReplicaKeeper
    results: OwnResults
    exchange: Exchange
    times: RoundTimes
    delivered: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, document: RunDocument) -> None:
        """Train this client's data assignment of the round and publish the result; stay ready for the next round.

        Raises:
            Refused: the round has moved on, or the result breaks a rule; the next round is not affected.
        """
        head, ahead = round_of(document), self.training.data.ahead
        if not self.eager.is_for(head):
            ahead.hold_back()
        try:
            await self._deliver(document, await self.rounds.of(head))
        finally:
            ahead.release()
            self.delivered.set()
        await self.readiness.keep(head.step - 1)

    async def _deliver(self, document: RunDocument, view: RoundView) -> None:
        client_id = self.session.client_id
        if client_id not in view.positions:
            self.readiness.owe()
        mine = RoundWork.of_round(document, self.config.state, view, client_id)
        found = await self.eager.take(mine)
        if not mine.assignments:
            return
        if self.readiness.is_new:
            await self.readiness.ensure(mine.step - 1)
        if found is None:
            trained = await self.training.result(mine, lambda: self._replica(mine))
            if isinstance(trained, Failure):
                await self._report_failure(mine, trained)
                return
            found = trained
        self.results.published(mine.step, found.sha256)
        await self.eager.begin(document, self.config.state, found)
        await self._publish(mine, found)

    async def _replica(self, mine: RoundWork) -> TrainingStart:
        held = await self.keeper.at(mine.step - 1)
        self.results.forget()  # not before: the outcome that led here settles the last result
        return TrainingStart(held.replica, held.digest, state_sha256=await self._last_state(mine))

    async def _last_state(self, mine: RoundWork) -> Sha256 | None:
        """Return the digest of the inner state with which the round may begin; None for a fresh one."""
        if not mine.settings.reveals_inner_states or mine.step == 1:
            return None
        try:
            found = (await self.keeper.outcome(mine.step - 1)).state_sha256
            return None if found is None else Sha256(found)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            return None

    async def _publish(self, mine: RoundWork, found: OwnResult) -> None:
        self.times.observe(PartBegan(mine.step, mine.attempt, "upload"))
        try:
            await self.exchange.publish(found.commitment, found.file)
        except Refused as refusal:
            if refusal.kind not in UNDELIVERED_KINDS:
                raise
            # "unavailable": the work is carried over to a later round, and no data become suspect
            reported = f"the result was not taken: {refusal.kind}"
            await self._report(mine, "unavailable", f"{reported}: {refusal.message}", reported, None)
        else:
            self.times.delivered(found.commitment, total_batches(mine.assignments))

    async def _report_failure(self, mine: RoundWork, failed: Failure) -> None:
        error = failed.error
        await self._report(mine, _kind_of(error), error.message, reported_failure(error), failed.batch_id)

    async def _report(
        self, mine: RoundWork, kind: FailureKind, reason: str, reported: str, batch_id: BatchId | None
    ) -> None:
        """Log the reason, and report the part of it that the coordinator may know."""
        name = mine.step, mine.attempt
        log.warning("step_failed", extra={"step": mine.step, "kind": kind, "reason": reason})
        self.times.observe(RoundFailed(*name, kind, reason, batch_id))
        await self.session.report(FailureReport(*name, kind, visible(reported)[:MAX_MESSAGE_CHARS], batch_id))


def _kind_of(failure: DataError | TrainerFailed) -> FailureKind:
    if isinstance(failure, DataError):
        return failure_kind(failure)
    return "not_finite" if failure.context.get("failure") == NOT_FINITE else "trainer"
