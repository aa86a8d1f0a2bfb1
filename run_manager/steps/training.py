"""The Training step: from the run document's round to a published result, or to a reported failure.

`start` computes `assign_data_for_state`, gives the `data_assignments` to `fetch_data`, and the trainer receives from
its channel. Fetching begins before the replica is held, because it depends on the assignment alone.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from epochal.batching.packing.packed_batches import AssignedBatches
from epochal.batching.round_plan import RoundPlan, plan_round
from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.fetcher import failure_kind
from epochal.run_manager.client_round_times import RoundTimes, data_metrics
from epochal.run_manager.context import FollowedConfig
from epochal.run_manager.events import PartBegan, RoundFailed, RoundPart
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.own_results import OwnResults
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.round_view import RoundView, RoundViews, round_of
from epochal.run_manager.run_data import RunData
from epochal.run_manager.steps.failure_texts import reported_failure
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.files.spool import SpoolFile
from epochal.runtime.visible_text import visible
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import DataError, FailureKind, Refused, TrainerFailed
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.data_metrics import DataMetrics
from epochal.state.messages.requests import (
    MAX_MESSAGE_CHARS,
    FailureReport,
    ResultCommitment,
    ResultMetrics,
)
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader
from epochal.state.schedule import InnerSchedule
from epochal.state.wire import Blake3
from epochal.trainers.learner import NOT_FINITE
from epochal.trainers.protocol import TrainedRound

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


@dataclass(frozen=True, slots=True)
class _Round:
    """The round that this client trains in, as its document and configuration have it when the step starts."""

    document: RunDocument
    state: StateFile
    view: RoundView
    assignments: tuple[BatchId, ...]

    @property
    def head(self) -> RoundHead:
        return self.view.head

    def plan(self) -> RoundPlan:
        """Return this client's local steps."""
        state, llm = self.state, self.state.model.LLM
        cold_start = llm.cold_start_warmup_steps, self.document.cold_start_step
        schedule = InnerSchedule(llm.lr_schedule, state.merge.local_steps, *cold_start)
        return plan_round(self.head.step, self.assignments, state.config.data_indices_per_batch, schedule)


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
    opening: TrainerOpening
    data: RunData
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
        head = round_of(document)
        self.data.ahead.hold_back()
        try:
            await self._deliver(document, await self.rounds.of(head))
        finally:
            self.data.ahead.release()
            self.delivered.set()
        await self.readiness.keep(head.step - 1)

    async def _deliver(self, document: RunDocument, view: RoundView) -> None:
        client_id = self.session.client_id
        if client_id not in view.positions:
            self.readiness.owe()
        mine = _Round(document, self.config.state, view, view.assignments.get(client_id, ()))
        if not mine.assignments:
            return
        result = await self._result(mine)
        if result is not None:
            await self._publish(mine, *result)

    async def _result(self, mine: _Round) -> tuple[SpoolFile, ResultMetrics] | None:
        """Return this client's result as a file, so that no tensor takes memory while it is sent; None if it failed."""
        trained = await self._train(mine)
        return None if trained is None else await self._encode(mine, *trained)

    async def _train(self, mine: _Round) -> tuple[TrainedRound, Blake3, DataMetrics | None] | None:
        """Return the local steps, the digest of the replica before them, and how the data came."""
        self._begin(mine, "replica")
        plan, opened = mine.plan(), await self.opening.opened()
        trainer, packing = opened.trainer, opened.packing
        failure: DataError | TrainerFailed | None = None
        async with asyncio.TaskGroup() as group:
            fetched = () if trainer.loads_data else mine.assignments
            receiver = self.data.fetcher(trainer.vocabulary).fetch_data(fetched, group)
            batches: AssignedBatches = receiver if packing is None else packing.rows_of(mine.assignments, receiver)
            held = await self.keeper.at(mine.head.step - 1)
            await self.opening.check(held.replica)
            self.results.check_room(held.replica, mine.state)
            self._begin(mine, "train")
            try:
                self.results.forget()
                trained = await trainer.train(plan, held.replica.parameters, batches)
            except (DataError, TrainerFailed) as error:
                failure = error
            finally:
                receiver.close()
        if failure is not None:
            kind = _kind_of(failure)
            batch_id = failure.context.get("batch_id", batches.failed_batch)
            await self._report(mine, kind, failure.message, reported_failure(failure), batch_id)
            return None
        return trained, held.digest, None if trainer.loads_data else data_metrics(batches.waited, self.data.ahead)

    async def _encode(
        self, mine: _Round, trained: TrainedRound, replica_digest: Blake3, data: DataMetrics | None
    ) -> tuple[SpoolFile, ResultMetrics]:
        self._begin(mine, "encode")
        header = ResultHeader(
            run_id=mine.document.run_id,
            step=mine.head.step,
            attempt=mine.head.attempt,
            client_id=self.session.client_id,
            work_sha256=mine.head.work_sha256,
            replica_digest=replica_digest,
            codec=mine.state.merge.codec_name,
        )
        lineage, max_abs = mine.document.lineage, mine.state.merge.max_abs
        file = await self.results.encoded(header, lineage, trained.difference, max_abs)
        return file, self.times.result_metrics(trained, data)

    async def _publish(self, mine: _Round, file: SpoolFile, metrics: ResultMetrics) -> None:
        sha256 = file.sha256()
        commitment = ResultCommitment(mine.head.step, mine.head.attempt, sha256, file.size_bytes, metrics)
        self.results.published(sha256)
        self._begin(mine, "upload")
        try:
            await self.exchange.publish(commitment, file)
        except Refused as refusal:
            if refusal.kind not in UNDELIVERED_KINDS:
                raise
            # "unavailable": the work is carried over to a later round, and no data become suspect
            reported = f"the result was not taken: {refusal.kind}"
            await self._report(mine, "unavailable", f"{reported}: {refusal.message}", reported, None)
        else:
            self.times.delivered(commitment, total_batches(mine.assignments))

    async def _report(
        self, mine: _Round, kind: FailureKind, reason: str, reported: str, batch_id: BatchId | None
    ) -> None:
        """Log the reason, and report the part of it that the coordinator may know."""
        name = mine.head.step, mine.head.attempt
        log.warning("step_failed", extra={"step": mine.head.step, "kind": kind, "reason": reason})
        self.times.observe(RoundFailed(*name, kind, reason, batch_id))
        await self.session.report(FailureReport(*name, kind, visible(reported)[:MAX_MESSAGE_CHARS], batch_id))

    def _begin(self, mine: _Round, part: RoundPart) -> None:
        self.times.observe(PartBegan(mine.head.step, mine.head.attempt, part))


def _kind_of(failure: DataError | TrainerFailed) -> FailureKind:
    if isinstance(failure, DataError):
        return failure_kind(failure)
    return "not_finite" if failure.context.get("failure") == NOT_FINITE else "trainer"
