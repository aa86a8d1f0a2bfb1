"""The Training step: from the run document's round to a published result, or to a reported failure.

`start` computes `assign_data_for_state`, gives the `data_assignments` to `fetch_data`, and the trainer receives from
its channel. Fetching begins before the replica is held, because it depends on the assignment alone.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from epochal.batching.packing.packed_batches import AssignedBatches
from epochal.batching.round_plan import plan_round
from epochal.data_providers.fetcher import failure_kind
from epochal.data_providers.waits import WaitTimes
from epochal.run_manager.context import StepContext
from epochal.run_manager.events import BlobSent, PartBegan, RoundFailed, RoundPart, RoundTrained, WorkAssigned
from epochal.run_manager.replica.keeper import round_bytes
from epochal.run_manager.round_view import round_of
from epochal.run_manager.steps.failure_texts import reported_failure
from epochal.runtime.files.spool import SpoolFile
from epochal.runtime.visible_text import visible
from epochal.state.documents import RunDocument
from epochal.state.errors import DataError, Refused, TrainerFailed
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.data_metrics import MAX_CLAIMED_S, MAX_CLAIMED_SAMPLES, DataMetrics
from epochal.state.messages.deliveries import MAX_DELIVERED_BYTES
from epochal.state.messages.requests import (
    MAX_MESSAGE_CHARS,
    FailureKind,
    FailureReport,
    ResultCommitment,
    ResultMetrics,
)
from epochal.state.messages.round_times import MS_PER_S, WorkTimes, milliseconds
from epochal.state.refusals import Refusal
from epochal.state.results import ResultHeader
from epochal.state.schedule import InnerSchedule
from epochal.state.wire import Sha256
from epochal.trainers.protocol import TrainedRound

log = logging.getLogger(__name__)

TOLD_PLACES = 3
"""Number of decimal places of the seconds that a client reports: the journal keeps them."""
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


class TrainingStepMetadata:
    """One training step. `delivered` is set when the result was published, or a failure reported."""

    def __init__(self, context: StepContext, document: RunDocument) -> None:
        self._context = context
        self._document = document
        self._head = round_of(document)
        self.delivered = asyncio.Event()

    async def start(self) -> None:
        """Train this client's data assignment of the round and publish the result; stay ready for the next round.

        Raises:
            Refused: the round has moved on, or the result breaks a rule; the next round is not affected.
        """
        try:
            await self._deliver()
        finally:
            self._context.ahead.release()
            self.delivered.set()
        await self._context.readiness.keep(self._head.step - 1)

    async def _deliver(self) -> None:
        context = self._context
        view = await context.rounds.of(self._head)
        client_id = context.session.client_id
        if client_id not in view.positions:
            context.readiness.owe()
        data_assignments, head = view.assignments.get(client_id, ()), self._head
        batch_count, is_witness = total_batches(data_assignments), client_id in view.witnesses
        context.dependencies.observer(
            WorkAssigned(head.step, head.attempt, batch_count, head.batches, len(view.positions), is_witness)
        )
        if data_assignments:
            self._begin("replica")
            result = await self._result_or_report(data_assignments, len(view.positions))
            if result is not None:
                await self._publish(*result, batch_count)

    def _begin(self, part: RoundPart) -> None:
        self._context.dependencies.observer(PartBegan(self._head.step, self._head.attempt, part))

    async def _result_or_report(
        self, data_assignments: tuple[BatchId, ...], client_count: int
    ) -> tuple[SpoolFile, ResultMetrics] | None:
        """Return the result's file, and no tensor that memory would hold while it is sent; None after a failure."""
        trained = await self._train_or_report(data_assignments, client_count)
        return None if trained is None else await self._spooled(*trained)

    async def _train_or_report(
        self, data_assignments: tuple[BatchId, ...], client_count: int
    ) -> tuple[TrainedRound, ResultMetrics, Sha256] | None:
        """Return the local steps, their figures, and the digest of the replica that they start from."""
        context, head = self._context, self._head
        config, llm = context.state.config, context.state.model.LLM
        plan = plan_round(
            head.step,
            data_assignments,
            config.data_indices_per_batch,
            InnerSchedule(
                llm.lr_schedule,
                context.state.merge.local_steps,
                llm.cold_start_warmup_steps,
                self._document.cold_start_step,
            ),
        )
        generations, data_fingerprint = context.state.data_generations, self._document.data_fingerprint
        plan = replace(plan, data_generations=generations, data_fingerprint=data_fingerprint)
        clock = context.dependencies.retry_policy.clock
        opened = await context.opening.opened()
        failure: DataError | TrainerFailed | None = None
        async with asyncio.TaskGroup() as group:
            fetched = () if opened.trainer.loads_data else data_assignments
            receiver = context.fetcher(opened.trainer.vocabulary).fetch_data(fetched, group)
            packing = opened.packing
            batches: AssignedBatches = receiver if packing is None else packing.rows_of(data_assignments, receiver)
            held = await context.keeper.at(head.step - 1)
            await context.opening.check(held.replica)
            is_saved = context.dependencies.save_replica is not None
            context.spool.check_room(
                round_bytes(held.replica, context.state, client_count, is_saved=is_saved),
                f"a round of {client_count} clients",
                None if context.feedback is None else context.feedback.files(held.replica.layout),
            )
            started_s, replica_s = clock.monotonic_s(), context.times.since_document_s()
            self._begin("train")
            try:
                context.tentative.forget()
                trained = await opened.trainer.train(plan, held.replica.parameters, batches)
            except (DataError, TrainerFailed) as error:
                failure = error
            finally:
                receiver.close()
        if failure is not None:
            await self._report(failure, failure.context.get("batch_id", batches.failed_batch))
            return None
        train_s = clock.monotonic_s() - started_s
        data = None if opened.trainer.loads_data else self._data_metrics(batches.waited)
        train_s, work = round(train_s, TOLD_PLACES), context.times.work(replica_s)
        return trained, ResultMetrics(trained.loss, trained.token_count, train_s, data, work), held.digest

    def _data_metrics(self, waited: WaitTimes) -> DataMetrics:
        used, dropped = self._context.ahead.counts_since_last()
        return DataMetrics(
            fetching_s=round(min(waited.fetching_s, MAX_CLAIMED_S), TOLD_PLACES),
            decoding_s=round(min(waited.decoding_s, MAX_CLAIMED_S), TOLD_PLACES),
            packing_s=round(min(waited.packing_s, MAX_CLAIMED_S), TOLD_PLACES),
            ahead_samples=min(used, MAX_CLAIMED_SAMPLES),
            dropped_samples=min(dropped, MAX_CLAIMED_SAMPLES),
        )

    async def _spooled(
        self, trained: TrainedRound, metrics: ResultMetrics, replica_digest: Sha256
    ) -> tuple[SpoolFile, ResultMetrics]:
        context, head = self._context, self._head
        now_s = context.dependencies.retry_policy.clock.monotonic_s
        began_s = now_s()
        self._begin("encode")
        header = ResultHeader(
            run_id=self._document.run_id,
            step=head.step,
            attempt=head.attempt,
            client_id=context.session.client_id,
            work_sha256=head.work_sha256,
            replica_digest=replica_digest,
            codec=context.state.merge.codec_name,
        )
        encoding = partial(context.result_of, header, self._document.lineage, trained.difference)
        stream = await context.worker.run(encoding)
        file = await context.worker.run(partial(context.spool.keep, stream.views(), stream.size_bytes))
        assert metrics.work is not None, "it is known since the training"
        work = metrics.work._replace(encode_ms=milliseconds(now_s() - began_s))
        return file, replace(metrics, work=work, before=context.times.before())

    async def _publish(self, file: SpoolFile, metrics: ResultMetrics, batch_count: int) -> None:
        context, head = self._context, self._head
        sha256 = file.sha256()
        commitment = ResultCommitment(head.step, head.attempt, sha256, file.size_bytes, metrics)
        context.tentative.published(sha256)
        now_s = context.dependencies.retry_policy.clock.monotonic_s
        began_s = now_s()
        self._begin("upload")
        try:
            await self._send(commitment, file)
        except Refused as refusal:
            if refusal.kind not in UNDELIVERED_KINDS:
                raise
            # "unavailable": the work is carried over to a later round, and no data become suspect
            reported = f"the result was not taken: {refusal.kind}"
            await self._report_failed("unavailable", f"{reported}: {refusal.message}", reported, None)
            return
        context.dependencies.observer(round_trained(commitment, batch_count, now_s() - began_s))

    async def _send(self, commitment: ResultCommitment, file: SpoolFile) -> None:
        """Commit to the result and publish it: a small one comes along. Raises `Refused`."""
        context, sha256 = self._context, Sha256(commitment.result_sha256)
        if file.size_bytes > MAX_DELIVERED_BYTES:
            await context.session.report(commitment)
        else:
            started_s = context.dependencies.retry_policy.clock.monotonic_s()
            standing = await context.session.send_result(commitment, file.to_bytes())
            took_s = context.dependencies.retry_policy.clock.monotonic_s() - started_s
            is_of_round = (standing.step, standing.attempt) == (commitment.step, commitment.attempt)
            if standing.result_verified or not is_of_round:
                context.exchange.published(sha256, file)
                context.dependencies.observer(BlobSent(file.size_bytes, took_s))
                return
        await context.exchange.publish(sha256, file)

    async def _report(self, failure: DataError | TrainerFailed, batch_id: BatchId | None) -> None:
        kind = failure_kind(failure) if isinstance(failure, DataError) else "trainer"
        await self._report_failed(kind, failure.message, reported_failure(failure), batch_id)

    async def _report_failed(self, kind: FailureKind, reason: str, reported: str, batch_id: BatchId | None) -> None:
        """Log the reason, and report the part of it that the coordinator is told."""
        context, head = self._context, self._head
        report = FailureReport(head.step, head.attempt, kind, visible(reported)[:MAX_MESSAGE_CHARS], batch_id)
        log.warning("step_failed", extra={"step": head.step, "kind": kind, "reason": reason})
        context.dependencies.observer(RoundFailed(head.step, head.attempt, kind, reason, batch_id))
        await context.session.report(report)


def round_trained(commitment: ResultCommitment, batch_count: int, upload_s: float) -> RoundTrained:
    """Return the event of a result that is with the coordinator, after it was sent for so long."""
    metrics = commitment.metrics
    data, work = metrics.data or DataMetrics(0.0, 0.0, 0.0), metrics.work or WorkTimes(None, 0, 0)
    return RoundTrained(
        step=commitment.step,
        attempt=commitment.attempt,
        loss=metrics.loss,
        token_count=metrics.tokens,
        batch_count=batch_count,
        train_s=metrics.train_s,
        data_wait_s=data.fetching_s + data.decoding_s + data.packing_s,
        result_sha256=commitment.result_sha256,
        fetching_s=data.fetching_s,
        decoding_s=data.decoding_s,
        packing_s=data.packing_s,
        ahead_samples=data.ahead_samples,
        dropped_samples=data.dropped_samples,
        idle_s=None if work.idle_ms is None else work.idle_ms / MS_PER_S,
        replica_s=work.replica_ms / MS_PER_S,
        encode_s=work.encode_ms / MS_PER_S,
        upload_s=upload_s,
        uploaded_bytes=commitment.size_bytes,
    )
