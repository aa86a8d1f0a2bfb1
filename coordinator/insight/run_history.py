"""The history of the run that a service owns: read from the journal in the background, then kept as rounds end.

Theory of operation. The journal's segments are replayed a few records at a time, in a thread, with rests; a compacted
journal begins with the history that its proof holds, and now and then the history is kept beside the journal, so that
the next start reads only what follows. Rounds that end meanwhile wait, and are added once the journal was read up to
them. So a start is as fast as before. Where the journal went back, its history is read again.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import aclosing

from epochal.coordinator.insight.journal_history import JournalHistory as JournalHistory
from epochal.coordinator.insight.journal_history import read_history as read_history
from epochal.coordinator.insight.kept_history import KeptHistory, RecordMark, holds
from epochal.coordinator.insight.projection import Projection, Told
from epochal.coordinator.insight.speed_explanations import SpeedExplanations
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided
from epochal.coordinator.machine.records import Kept
from epochal.coordinator.proof.compaction import Fold
from epochal.coordinator.store.sql.journal import Journal
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

MAX_WAITING_ROUNDS = 4096
"""Maximum number of rounds that may end while the journal is read; with more, it is read again."""
MAX_WAITING = 131_072
"""The same for these rounds and all else that is told meanwhile, together."""
READ_RETRY_S = 5.0
"""Time after which a journal is read again that could not be read."""
MIN_ROUNDS_KEPT = 512
"""Minimum number of rounds that end between two times that the history is kept beside the journal."""
ROWS_PER_ROUND_KEPT = 16
"""The longer a history is, the less often it is kept: as many rows each time for a round that a start may replay."""
ASK_AGAIN_S = 2.0


class RunHistory:
    """Keeps the history of one service's run.

    Args:
        journal: of the run.
        worker: replays its records.
    """

    def __init__(self, journal: Journal, worker: Worker) -> None:
        self._journal = journal
        self._worker = worker
        self._read: JournalHistory | None = None
        self._problem: str | None = None
        self._waiting: list[tuple[Told, Kept]] = []
        self._waiting_rounds = 0
        self._is_read_due = asyncio.Event()
        self._is_read_due.set()
        self._keep_due = asyncio.Event()
        self._kept_next = 0
        """Number of the round that followed those that were kept last."""
        self.was_kept = asyncio.Event()
        """Set once the history was kept beside the journal."""
        self.explanations = SpeedExplanations(worker)
        self.is_read = asyncio.Event()
        """Set while the history is complete."""

    @property
    def history(self) -> Projection:
        """The history.

        Raises:
            Refused: `overloaded` while the journal is being read, `store-failed` if it cannot be.
        """
        if self._read is not None:
            return self._read.history
        if self._problem is not None:
            raise Refused(Refusal.STORE_FAILED, f"the run's history cannot be read: {self._problem}")
        raise Refused(
            Refusal.OVERLOADED,
            "the run's history is being read from its journal, since the coordinator has started; ask again soon",
            retry_after_s=ASK_AGAIN_S,
        )

    @property
    def has_problem(self) -> bool:
        """Whether the journal cannot be read at the moment."""
        return self._read is None and self._problem is not None

    def take(self, instructions: Iterable[Instruction], kept: Kept) -> None:
        """Add what was told with a stimulus, once it is kept.

        Args:
            instructions: the stimulus gave.
            kept: the record that holds it.
        """
        for one in instructions:
            if not isinstance(one, Told):
                continue
            if self._read is None:
                self._wait(one, kept)
            elif kept.sequence > self._read.sequence:
                self._add(self._read, one, kept)

    def _wait(self, one: Told, kept: Kept) -> None:
        self._waiting.append((one, kept))
        self._waiting_rounds += isinstance(one, OutcomeDecided)
        if self._waiting_rounds > MAX_WAITING_ROUNDS or len(self._waiting) > MAX_WAITING:
            self.read_again()

    def _add(self, read: JournalHistory, one: Told, kept: Kept) -> None:
        read.history.take((one,), kept.version)
        read.mark = RecordMark(kept.sequence, kept.document_sha256)
        self._note_due(read)

    def _note_due(self, read: JournalHistory) -> None:
        """Have the history kept if many rounds have ended since the last time."""
        if read.history.next - self._kept_next >= max(MIN_ROUNDS_KEPT, len(read.history.rows) // ROWS_PER_ROUND_KEPT):
            self._keep_due.set()

    def read_again(self) -> None:
        """Read the journal again, because it went back."""
        self._read, self._kept_next = None, 0
        self._waiting.clear()
        self._waiting_rounds = 0
        self.is_read.clear()
        self._is_read_due.set()

    def fold(self, text: str) -> Fold:
        """Return the projection that `Projection.encoded` wrote. Raise as `Projection.decoded`."""
        return Projection.decoded(text)

    async def run(self) -> None:
        """Read the journal, and keep its history, whenever that is due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_when_due())
            tasks.create_task(self._keep_when_due())

    async def _keep_when_due(self) -> None:
        said = ""
        while True:
            await self._keep_due.wait()
            self._keep_due.clear()
            try:
                if self._read is not None:
                    await self._keep(self._read)
            except StoreFailed as error:
                if error.message != said:
                    said = error.message
                    log.warning(
                        "history_not_kept", extra={"reason": said, "consequence": "the next start takes longer"}
                    )

    async def _keep(self, read: JournalHistory) -> None:
        """Keep the history as it is now beside the journal."""
        mark, next_round, encode = read.mark, read.history.next, read.history.captured()
        if mark is None:
            return
        self._kept_next = next_round
        segment = await self._segment_with(mark, read.segment)
        if segment is not None and self._read is read:
            read.segment = segment
            kept = KeptHistory(mark, segment, await self._worker.run(encode))
            await self._journal.keep_history(await self._worker.run(kept.encoded))
            self.was_kept.set()

    async def _segment_with(self, mark: RecordMark, known: int) -> int | None:
        """Return the segment that holds a record, from a known one on; None if the journal went back, or is without."""
        proofs = await self._journal.proofs()
        first = max(known, proofs[-1].segment_count if proofs else 0)
        async with aclosing(self._journal.history(first)) as segments:
            async for segment in segments:
                if holds(segment, mark):
                    return segment.number
        return None

    async def _read_when_due(self) -> None:
        while True:
            await self._is_read_due.wait()
            self._is_read_due.clear()
            try:
                found = await read_history(self._journal, self._worker, has_rests=True)
            except StoreFailed as error:
                if self._problem != error.message:
                    self._problem = error.message
                    log.warning("history_not_read", extra={"reason": error.message})
                await asyncio.sleep(READ_RETRY_S)
                self._is_read_due.set()
                continue
            if self._is_read_due.is_set():  # the journal went back meanwhile
                continue
            self._problem, self._read, self._kept_next = None, found, found.kept_next
            waiting, self._waiting, self._waiting_rounds = self._waiting, [], 0
            for one, kept in waiting:
                if kept.sequence > found.sequence:
                    found.history.take((one,), kept.version)
                    found.mark = RecordMark(kept.sequence, kept.document_sha256)
            self._note_due(found)
            self.is_read.set()
