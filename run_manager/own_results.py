"""This client's own results: encoded into files, and the parts of the client that depend on their fate.

The rule kept here (`docs/merging.md`): the trainer's inner state and the residual of error feedback are tentative after
a round. They are kept if the outcome contains the result that they came with, and rolled back otherwise.
"""

from functools import partial

from epochal.run_manager.error_feedback import ErrorFeedback
from epochal.run_manager.replica.keeper import round_bytes
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Tensors
from epochal.state.results import ResultHeader, result_of
from epochal.state.wire import Sha256
from epochal.trainers.protocol import Trainer


class OwnResults:
    """The results of one client.

    Args:
        trainer: its inner state belongs to the last result.
        feedback: the residual of this client's codec; None in a run without error feedback.
    """

    def __init__(
        self,
        trainer: Trainer | TrainerOpening,
        spool: Spool,
        worker: Worker,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        self._trainer = trainer
        self._spool = spool
        self._worker = worker
        self._feedback = feedback
        self._result_sha256: Sha256 | None = None

    def check_room(self, replica: Replica, state: StateFile) -> None:
        """Raise `SpoolFull` unless a round that is trained from the replica fits into the spool."""
        self._spool.check_room(round_bytes(replica, state), "a round")

    async def encoded(self, header: ResultHeader, lineage: str, difference: Tensors, max_abs: float) -> SpoolFile:
        """Return the file of a result. `difference` is `start − end` of every parameter; `max_abs` is the run's."""
        if self._feedback is None:
            encoding = partial(result_of, header, difference, max_abs)
        else:
            encoding = partial(self._feedback.encode, header, lineage, difference, max_abs)
        stream = await self._worker.run(encoding)
        return await self._worker.run(partial(self._spool.keep, stream.views(), stream.size_bytes))

    def published(self, result_sha256: Sha256) -> None:
        """Note that the last `train` led to this result."""
        if self._feedback is not None:
            self._feedback.published(result_sha256)
        self._result_sha256 = result_sha256

    def settle(self, outcome: Outcome) -> None:
        """Keep the inner state if the outcome contains the result, else roll it back."""
        if self._feedback is not None:
            self._feedback.settle(outcome)
        result = self._result_sha256
        if result is not None and any(entry.result_sha256 == result for entry in outcome.entries):
            self._trainer.commit_inner_state()
            self._result_sha256 = None
        else:
            self.forget()

    def forget(self) -> None:
        """Roll the inner state back: no outcome will contain the result."""
        self._trainer.roll_back_inner_state()
        self._result_sha256 = None
