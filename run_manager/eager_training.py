"""Training for a round that has not begun, from this client's own last result (`merge.delay`, `docs/merging.md`).

Theory of operation. During a round, the run document promises the work of the next one. As soon as this client has its
result and the promise, it takes the outer step that this result alone makes of the round's replica, and trains from
there, beside the upload, the outcome and the update. When the result of the promised round is ready, the client binds
itself to it. The bytes go out once the promised round has begun.

The rule kept here: the work counts only if the run document's next round is the promised one, and the last outcome
contains the result from which it began. Otherwise it is dropped, with what the trainer and the codec kept of it, and
the round is trained from its replica. At most one round is trained ahead: the next one needs the replica between.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from epochal.coordinator_client.session import CoordinatorSession
from epochal.run_manager.local_training import Failure, OwnResult, RoundTraining, RoundWork, TrainingStart
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.round_view import RoundViews, round_of
from epochal.run_manager.run_data import DataAhead
from epochal.runtime.background_task import BackgroundTask
from epochal.runtime.merging.merger import Merger
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RoundHead, RunDocument, first_beside, tries_before
from epochal.state.errors import Refused, SpoolFull
from epochal.state.merging import Diverged
from epochal.state.refusals import Refusal, Retry

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Eager:
    """Work for a promised round.

    Attributes:
        base: the round before, in which the work is promised.
        own: this client's result of that round.
        promised: the document that promises it, once it is there.
        work: None while it is not known; it stays so if the client has none.
        result: None until it is ready, or if there is none.
        ended: set when nothing more comes.
    """

    base: RoundHead
    own: OwnResult
    promised: asyncio.Future[RunDocument] = field(default_factory=asyncio.Future)
    work: RoundWork | None = None
    result: OwnResult | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class EagerTraining:
    """The training of one client for the round after the one under way.

    Args:
        group: runs it; it must outlive this.
    """

    def __init__(
        self,
        session: CoordinatorSession,
        rounds: RoundViews,
        training: RoundTraining,
        keeper: ReplicaKeeper,
        merger: Merger,
        data_ahead: DataAhead,
        group: asyncio.TaskGroup,
    ) -> None:
        self._session = session
        self._rounds = rounds
        self._training = training
        self._keeper = keeper
        self._merger = merger
        self._data_ahead = data_ahead
        self._task = BackgroundTask(group, "eager training")
        self._eager: _Eager | None = None
        self._document: RunDocument | None = None

    def is_for(self, head: RoundHead) -> bool:
        """Return whether this client trains, or has trained, for this round."""
        eager = self._eager
        return eager is not None and eager.promised.done() and _follows(eager.base, head)

    async def apply_state(self, document: RunDocument) -> None:
        """Drop the work unless the document's round is the one in which it is promised, or the one that follows."""
        self._document, eager = document, self._eager
        if eager is None:
            return
        if document.round == eager.base:
            _note_promise(eager, document)
        elif document.round is None or not _follows(eager.base, document.round):
            await self.stop()

    async def stop(self) -> None:
        """Drop the work."""
        self._eager = None
        await self._task.replace(None)

    async def begin(self, document: RunDocument, state: StateFile, own: OwnResult) -> None:
        """Begin to train for the promised round, as soon as there is one.

        Args:
            document: of the round under way.
            state: the run's.
            own: this client's result of the round, which is about to be published.
        """
        newest = self._document
        if not state.at(document.step).merge.delay or newest is None or newest.round != document.round:
            return
        self._eager = _Eager(round_of(document), own)
        _note_promise(self._eager, newest)
        await self._task.replace(self._run(state, self._eager))

    async def take(self, mine: RoundWork) -> OwnResult | None:
        """Return the result of a round that has begun, as soon as it is ready; None if it has to be trained.

        Nothing is trained ahead afterwards.
        """
        eager = self._eager
        try:
            if eager is None or not eager.promised.done() or tries_before(mine.attempt):
                return None
            if not await self._counts(eager):
                return None
            await eager.ended.wait()
            is_same = eager.work is not None and eager.work.is_same(mine)
            return eager.result if is_same else None
        finally:
            if eager is self._eager:
                await self.stop()

    async def _counts(self, eager: _Eager) -> bool:
        """Return whether the outcome of the round before contains the result from which the training began."""
        try:
            outcome = await self._keeper.outcome(eager.base.step)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            return False
        return outcome.result_sha256 == eager.own.sha256

    async def _run(self, state: StateFile, eager: _Eager) -> None:
        step = eager.base.step + 1
        try:
            eager.result = await self._result(await eager.promised, state, eager)
        except (Refused, SpoolFull, Diverged) as error:
            if isinstance(error, Refused) and error.kind.retry is Retry.LEAVE:
                raise
            log.warning("not_trained_ahead", extra={"step": step, "reason": error.message})
        finally:
            eager.ended.set()
        if eager.result is not None and self._document is not None and self._document.round == eager.base:
            await self._commit(eager.result)

    async def _result(self, document: RunDocument, state: StateFile, eager: _Eager) -> OwnResult | None:
        base, ahead = eager.base, document.ahead
        assert ahead is not None, "the work was promised"
        assignments = await self._rounds.ahead_of(ahead, base.seed, self._session.client_id)
        if not assignments:
            return None
        eager.work = RoundWork(
            document, state, base.step + 1, first_beside(base.attempt), ahead.work_sha256, assignments
        )
        start = await self._start(eager)
        if start is None:
            return None
        await self._data_ahead.pause()

        async def known() -> TrainingStart:
            return start

        found = await self._training.result(eager.work, known)
        if isinstance(found, Failure):  # the round reports it, if it fails again
            log.warning("not_trained_ahead", extra={"step": eager.work.step, "reason": found.error.message})
            return None
        return found

    async def _start(self, eager: _Eager) -> TrainingStart | None:
        """Return this client's own outer step; None if the replica of which it is taken is gone."""
        held = await self._keeper.at_unless_passed(eager.base.step - 1)
        if held is None:
            return None
        replica = await self._merger.eager_start(held.replica, eager.own.file.view())
        return TrainingStart(replica, held.digest, eager.own.sha256)

    async def _commit(self, result: OwnResult) -> None:
        """Bind this client to its result before the round, so that its time is measured without the wait for it."""
        try:
            await self._session.report(result.commitment)
        except Refused as refusal:
            if refusal.kind.retry is Retry.LEAVE:
                raise
            log.debug("not_bound_ahead", extra={"kind": refusal.kind})  # the promised round has begun meanwhile


def _note_promise(eager: _Eager, document: RunDocument) -> None:
    if document.ahead is not None and not eager.promised.done():
        eager.promised.set_result(document)


def _follows(base: RoundHead, head: RoundHead) -> bool:
    """Return whether a round is the first attempt at the step after another one's."""
    return (head.step, head.attempt) == (base.step + 1, first_beside(base.attempt))
