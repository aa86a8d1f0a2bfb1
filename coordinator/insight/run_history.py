"""The history of the run that a service owns: read from the journal in the background, then kept as rounds end.

Theory of operation. The journal's segments are replayed a few records at a time, in a thread, with rests; a compacted
journal begins with the history that its proof holds. Rounds that end meanwhile wait, and are added once the journal was
read up to them. So nothing waits for it at a start. Where the journal went back, its history is read again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from epochal.coordinator.insight.journal_history import JournalHistory as JournalHistory
from epochal.coordinator.insight.journal_history import read_history as read_history
from epochal.coordinator.insight.projection import Projection, Told
from epochal.coordinator.insight.speed_explanations import SpeedExplanations
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.records import Kept
from epochal.coordinator.proof.compaction import Fold
from epochal.coordinator.store.sql.journal import Journal
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

MAX_WAITING = 131_072
"""Maximum number of news that wait while the journal is read; with more, the oldest are read from it, too."""
READ_RETRY_S = 5.0
"""Time after which a journal is read again that could not be read."""
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
        self._waiting: deque[tuple[Told, Kept]] = deque(maxlen=MAX_WAITING)
        self._dropped_sequence = -1
        """Number of the last record of which something waits no more."""
        self._is_read_due = asyncio.Event()
        self._is_read_due.set()
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
        """Take in the instructions of one stimulus, once it is kept.

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
                self._read.history.take((one,), kept.version)

    def _wait(self, one: Told, kept: Kept) -> None:
        if len(self._waiting) == self._waiting.maxlen:
            self._dropped_sequence = self._waiting[0][1].sequence
        self._waiting.append((one, kept))

    def read_again(self) -> None:
        """Read the journal again, because it went back."""
        self._read = None
        self._waiting.clear()
        self._dropped_sequence = -1
        self.is_read.clear()
        self._is_read_due.set()

    def fold(self, text: str) -> Fold:
        """Return the projection that `Projection.encoded` wrote. Raise as `Projection.decoded`."""
        return Projection.decoded(text)

    async def run(self) -> None:
        """Read the journal whenever that is due, until cancelled."""
        while True:
            await self._is_read_due.wait()
            self._is_read_due.clear()
            try:
                found = await self._read_journal()
            except StoreFailed as error:
                if self._problem != error.message:
                    self._problem = error.message
                    log.warning("history_not_read", extra={"reason": error.message})
                await asyncio.sleep(READ_RETRY_S)
                self._is_read_due.set()
                continue
            if self._is_read_due.is_set():  # the journal went back meanwhile
                continue
            self._problem, self._read = None, found
            for one, kept in self._waiting:
                if kept.sequence > found.sequence:
                    found.history.take((one,), kept.version)
            self._waiting.clear()
            self.is_read.set()

    async def _read_journal(self) -> JournalHistory:
        """Return the history up to where news wait for it, or until the journal went back."""
        found = await read_history(self._journal, self._worker, has_rests=True)
        while self._dropped_sequence > found.sequence and not self._is_read_due.is_set():
            found = await read_history(self._journal, self._worker, found, has_rests=True)
        return found
