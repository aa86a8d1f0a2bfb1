"""This client's own results: encoded into files, and the parts of the client that depend on their fate.

The rule kept here (`docs/merging.md`): the trainer's inner state and the residual of error feedback are tentative after
a round. They are kept if the outcome contains the result that they came with, and rolled back otherwise; with
`merge.delay` so is what a later result has built on them.
"""

from functools import partial

from epochal.run_manager.error_feedback import ErrorFeedback
from epochal.run_manager.kept_states import KeptStates
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.side_by_side import side_by_side
from epochal.runtime.worker_thread import Worker
from epochal.state.codecs.codec import PartMap
from epochal.state.config.state_file import MergeConfig, StateFile
from epochal.state.documents import OwnOutcome
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Tensors, layout_of
from epochal.state.results import ResultHeader, result_of
from epochal.state.shown.spool_room import round_bytes
from epochal.state.wire import Sha256
from epochal.trainers.protocol import Trainer

ENCODED_BESIDE_BYTES = 32 * 1024 * 1024
"""Size of a difference from which it is encoded in several threads; a smaller one is encoded before they begin."""
ENCODED_HERE_BYTES = 256 * 1024
"""Size of a difference up to which it is encoded in the caller's thread: another one takes longer to wake."""


class OwnResults:
    """The results of one client.

    Args:
        trainer: its inner state belongs to the last result.
        feedback: the residual of this client's codec, in rounds with error feedback.
        states: the inner states on disk, in runs in which they may be asked for.

    Attributes:
        states: those; None where there are none.
    """

    def __init__(
        self,
        trainer: Trainer | TrainerOpening,
        spool: Spool,
        worker: Worker,
        feedback: ErrorFeedback | None = None,
        states: KeptStates | None = None,
    ) -> None:
        self.states = states
        self._trainer = trainer
        self._spool = spool
        self._worker = worker
        self._feedback = feedback
        self._published: dict[int, Sha256] = {}
        """The results whose outcome is not known, by step: one, or two with `merge.delay`."""

    def check_room(self, replica: Replica, state: StateFile) -> None:
        """Raise `SpoolFull` unless a round that is trained from the replica, and its inner states, find room."""
        beside_bytes = 0 if self.states is None else self.states.growth_bytes(replica.layout, state)
        self._spool.check_room(round_bytes(replica.layout, state), "a round", beside_bytes)

    async def encoded(self, header: ResultHeader, lineage: str, difference: Tensors, merge: MergeConfig) -> SpoolFile:
        """Return the file of a result. `difference` is `start − end` of every parameter; `merge` is the round's."""
        size_bytes = layout_of(difference).size_bytes
        over: PartMap = side_by_side if size_bytes >= ENCODED_BESIDE_BYTES else map
        if self._feedback is not None and merge.error_feedback:
            decay = merge.error_feedback_decay
            encoding = partial(self._feedback.encode, header, lineage, difference, decay, merge.max_abs, over)
        else:
            encoding = partial(result_of, header, difference, merge.max_abs, over)

        def kept() -> SpoolFile:
            stream = encoding()
            return self._spool.keep(stream.views(), stream.size_bytes)

        return kept() if size_bytes <= ENCODED_HERE_BYTES else await self._worker.run(kept)

    def published(self, step: int, result_sha256: Sha256) -> None:
        """Note that the oldest `train` since the last published result led to this one, of this step."""
        if self._feedback is not None:
            self._feedback.published(result_sha256)
        self._published[step] = result_sha256

    @property
    def awaits_outcome(self) -> bool:
        """Whether the outcome of a result is not known yet."""
        return bool(self._published)

    def settle(self, outcome: OwnOutcome) -> None:
        """Keep the inner state if the outcome contains the result, else roll it back."""
        if self.states is not None:
            self.states.settle(outcome)
        if self._feedback is not None:
            self._feedback.settle(outcome)
        if outcome.step < min(self._published, default=outcome.step):
            return  # applied again: the replica is rebuilt
        result = self._published.pop(outcome.step, None)
        if result is not None and result == outcome.result_sha256:
            self._trainer.commit_inner_state()
        else:
            self.forget()

    def forget(self) -> None:
        """Roll the inner state back: no outcome will contain a result that was published, or is being trained."""
        self._trainer.roll_back_inner_state()
        self._published.clear()

    def start_over(self) -> None:
        """Forget what was kept of earlier results, as a newcomer has it: the run went back to a replica before them."""
        self.forget()
        self._trainer.forget_inner_state()
        if self._feedback is not None:
            self._feedback.drop("the run went back to an earlier replica")
