"""One client's local steps in a round: from a start and a data assignment to a result that can be published.

`assign_data_for_state` says what a client trains on; its `data_assignments` go to `fetch_data`, and the trainer
receives from its channel. Fetching begins before the start is known, because it depends on the assignment alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Self

from epochal.batching.packing.packed_batches import AssignedBatches
from epochal.batching.round_plan import RoundPlan, plan_of
from epochal.run_manager.client_round_times import RoundTimes, data_metrics
from epochal.run_manager.events import PartBegan, RoundPart
from epochal.run_manager.gpu_gauge import GpuGauge
from epochal.run_manager.own_results import OwnResults
from epochal.run_manager.round_view import RoundView
from epochal.run_manager.run_data import RunData
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.files.spool import SpoolFile
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import DataError, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.messages.data_metrics import DataMetrics
from epochal.state.messages.requests import ResultCommitment
from epochal.state.messages.state_messages import InnerStates
from epochal.state.model.replica import Replica
from epochal.state.results import ResultHeader
from epochal.state.wire import Blake3, ClientId, Sha256
from epochal.trainers.protocol import TrainedRound


@dataclass(frozen=True, slots=True)
class RoundWork:
    """This client's work in a round.

    Attributes:
        document: the newest when the work began; of the round, or of the one before it.
        state: the run's then, with the changes of later steps.
        step, attempt: the round.
        work_sha256: digest of the round's work list.
        assignments: this client's batches.
    """

    document: RunDocument
    state: StateFile
    step: int
    attempt: int
    work_sha256: Sha256
    assignments: tuple[BatchId, ...]

    @classmethod
    def of_round(cls, document: RunDocument, state: StateFile, view: RoundView, client_id: ClientId) -> Self:
        """Return a client's work in the round under way."""
        head: RoundHead = view.head
        return cls(document, state, head.step, head.attempt, head.work_sha256, view.assignments.get(client_id, ()))

    def is_same(self, other: "RoundWork") -> bool:
        """Return whether it is the same work, whichever document it came from."""
        known = self.step, self.attempt, self.work_sha256, self.assignments
        return known == (other.step, other.attempt, other.work_sha256, other.assignments)

    @property
    def settings(self) -> StateFile:
        """The state file as the round follows it."""
        return self.state.at(self.step)

    def plan(self) -> RoundPlan:
        """Return this client's local steps."""
        return plan_of(self.state, self.step, self.assignments, self.document.cold_start_step)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStart:
    """The parameters from which a client trains.

    Attributes:
        replica: holds the parameters.
        digest: of the replica that a result names: itself, or the one of which the client took its own outer step.
        own_result: digest of the result with which it took that step; "" without.
        state_sha256: of the inner state with which it may begin; None for a fresh one.
    """

    replica: Replica
    digest: Blake3
    own_result: str = ""
    state_sha256: Sha256 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OwnResult:
    """A result as a file, so that no tensor takes memory while it is sent, and the commitment to it."""

    file: SpoolFile
    commitment: ResultCommitment

    @property
    def sha256(self) -> Sha256:
        """The digest of its bytes."""
        return Sha256(self.commitment.result_sha256)

    def with_states(self, states: InnerStates) -> "OwnResult":
        """Return it with a commitment to the inner states of its round, too."""
        return OwnResult(self.file, replace(self.commitment, states=states))


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """A failure of the data or of the trainer, and the batches that it blames, if any."""

    error: DataError | TrainerFailed
    batch_id: BatchId | None


class RoundTraining:
    """The local steps of one client, whose trainer takes one round after the other.

    Attributes:
        data: the client's.
    """

    def __init__(
        self, client_id: ClientId, opening: TrainerOpening, data: RunData, results: OwnResults, times: RoundTimes
    ) -> None:
        self._gpu = GpuGauge()
        self._client_id = client_id
        self._opening = opening
        self.data = data
        self._results = results
        self._times = times

    async def result(self, work: RoundWork, find_start: Callable[[], Awaitable[TrainingStart]]) -> OwnResult | Failure:
        """Return the result of a client's work, or why there is none.

        Args:
            work: of a round.
            find_start: returns the start, as soon as it is known.
        """
        self._begin(work, "replica")
        plan, opened = work.plan(), await self._opening.opened()
        trainer, packing = opened.trainer, opened.packing
        failure: DataError | TrainerFailed | None = None
        async with asyncio.TaskGroup() as group:
            fetched = () if trainer.loads_data else work.assignments
            receiver = self.data.fetcher(trainer.vocabulary).fetch_data(fetched, group)
            batches: AssignedBatches = receiver if packing is None else packing.rows_of(work.assignments, receiver)
            start = await find_start()
            await self._opening.check(start.replica)
            self._results.check_room(start.replica, work.settings)
            states = self._results.states if work.settings.reveals_inner_states else None
            begun = None if states is None else await states.begin(start.state_sha256)
            self._begin(work, "train")
            try:
                trained = await trainer.train(plan, start.replica.parameters, batches)
            except (DataError, TrainerFailed) as error:
                failure = error
            finally:
                receiver.close()
        if failure is not None:
            return Failure(failure, failure.context.get("batch_id", batches.failed_batch))
        data = None if trainer.loads_data else data_metrics(batches.waited, self.data.ahead)
        if not trainer.loads_data:
            trained = replace(trained, sample_tokens=batches.token_count)
        found = await self._encoded(work, trained, trainer.computed, start, data)
        if states is None or (verify := work.settings.verify) is None:
            return found
        return found.with_states(await states.end(work.step, begun, verify.within))

    async def _encoded(
        self, work: RoundWork, trained: TrainedRound, computed: str, start: TrainingStart, data: DataMetrics | None
    ) -> OwnResult:
        self._begin(work, "encode")
        self._gpu.begin(computed)
        merge = work.settings.merge
        header = ResultHeader(
            run_id=work.document.run_id,
            step=work.step,
            attempt=work.attempt,
            client_id=self._client_id,
            work_sha256=work.work_sha256,
            replica_digest=start.digest,
            codec=merge.codec_name,
            start=start.own_result,
            computed=computed,
        )
        file = await self._results.encoded(header, work.document.lineage, trained.difference, merge)
        metrics = self._times.result_metrics(trained, data, self._gpu.taken(), is_eager=bool(start.own_result))
        return OwnResult(file, ResultCommitment(work.step, work.attempt, file.sha256(), file.size_bytes, metrics))

    def _begin(self, work: RoundWork, part: RoundPart) -> None:
        self._times.observe(PartBegan(work.step, work.attempt, part))
