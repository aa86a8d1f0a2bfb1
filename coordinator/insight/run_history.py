"""The history of the run that a service owns: read from the journal in the background, then kept as rounds end.

Theory of operation. The journal's segments are replayed a few records at a time, in a thread, with rests; a compacted
journal begins with the history that its proof holds, and now and then the history is kept beside the journal, so that
the next start reads only what follows. Rounds that end meanwhile wait, and are added once the journal was read up to
them. So a start is as fast as before. Where the journal went back, its history is read again.

A look back at one version replays the segment that holds it, from its snapshot. Which segment that is, is known from
reading the history; segments are short enough for that (`run_journal.SEGMENT_RECORDS`).
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import aclosing
from functools import partial

from epochal.coordinator.insight.at_version import past_of
from epochal.coordinator.insight.journal_history import JournalHistory as JournalHistory
from epochal.coordinator.insight.journal_history import read_history as read_history
from epochal.coordinator.insight.kept_history import KeptHistory, RecordMark, holds, openings_from
from epochal.coordinator.insight.projection import Projection, Told
from epochal.coordinator.insight.speed_explanations import SpeedExplanations
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided
from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.machine.records import Kept, opening_version
from epochal.coordinator.proof.compaction import Fold
from epochal.coordinator.store.journal import Journal
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused, StoreFailed
from epochal.state.messages.history_rows import Moment
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
MAX_LOOKS = 16
"""Maximum number of looks back that wait or are under way; one at a time is."""
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
        self._look = asyncio.Lock()
        self._look_count = 0
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
        return self._journal_history().history

    @property
    def has_problem(self) -> bool:
        """Whether the journal cannot be read at the moment."""
        return self._read is None and self._problem is not None

    @property
    def first_version(self) -> int:
        """The first version to which one may look back. Raises as `history`."""
        return self._journal_history().openings[0][0]

    def _journal_history(self) -> JournalHistory:
        if self._read is not None:
            return self._read
        if self._problem is not None:
            raise Refused(Refusal.STORE_FAILED, f"the run's history cannot be read: {self._problem}")
        raise Refused(
            Refusal.OVERLOADED,
            "the run's history is being read from its journal, since the coordinator has started; ask again soon",
            retry_after_s=ASK_AGAIN_S,
        )

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
        openings = await self._openings_to(read, mark)
        if openings is not None and self._read is read:
            kept = KeptHistory(mark, openings, await self._worker.run(encode))
            await self._journal.keep_history(await self._worker.run(kept.encoded))
            self.was_kept.set()

    async def _openings_to(self, read: JournalHistory, mark: RecordMark) -> tuple[tuple[int, int], ...] | None:
        """Return the segments up to the one that holds a record, and note those that were opened since.

        None if the journal does not hold the record, because it went back, or not any more.
        """
        proofs = await self._journal.proofs()
        first = max(read.openings[-1][1], proofs[-1].segment_count if proofs else 0)
        async with aclosing(self._journal.history(first)) as segments:
            async for segment in segments:
                if segment.number > read.openings[-1][1]:
                    read.openings.append((opening_version(segment.snapshot), segment.number))
                if holds(segment, mark):
                    found = [opening for opening in read.openings if opening[1] <= segment.number]
                    return tuple(openings_from(found, proofs[-1].segment_count if proofs else 0))
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

    async def moment(self, version: int, present_version: int) -> Moment:
        """Return the run as it was when the document of this version was published, as viewers are shown it.

        Args:
            version: to look back at.
            present_version: that of the present document.

        Raises:
            Refused: `not-found` if it lies in the future or in what was compacted; `overloaded` if too many look back;
                and as `history`.
        """
        read = self._journal_history()
        if not read.openings[0][0] <= version <= present_version:
            raise _no_version(version, read.openings[0][0], present_version)
        if self._look_count >= MAX_LOOKS:
            raise Refused(Refusal.OVERLOADED, f"{MAX_LOOKS} looks back are under way; try again in a moment")
        self._look_count += 1
        try:
            async with self._look:
                segment = await self._segment_of(read, version)
                if segment is None:
                    raise _no_version(version, read.openings[0][0], present_version)
                past = await self._worker.run(partial(past_of, segment, version, read.history))
                if not past.ended and (before := await self._segment_before(read, segment)) is not None:
                    past = await self._worker.run(partial(past_of, segment, version, read.history, before))
                return await self._worker.run(past.moment)
        except StoreFailed as error:
            raise Refused(Refusal.STORE_FAILED, f"the journal cannot be read: {error.message}") from error
        finally:
            self._look_count -= 1

    async def _segment_before(self, read: JournalHistory, segment: Segment) -> Segment | None:
        """Return the segment before one; None if it is not kept any more."""
        numbers = [number for _, number in read.openings if number < segment.number]
        if not numbers:
            return None
        async with aclosing(self._journal.history(numbers[-1])) as segments:
            async for found in segments:
                return found if found.number == numbers[-1] else None
        return None

    async def _segment_of(self, read: JournalHistory, version: int) -> Segment | None:
        """Return the last segment that was opened at this version or before; None if it is not kept any more."""
        place = bisect_right(read.openings, version, key=lambda opening: opening[0]) - 1
        following = read.openings[place + 1 : place + 2]
        found: Segment | None = None
        async with aclosing(self._journal.history(read.openings[place][1])) as segments:
            try:
                async for segment in segments:
                    if found is None and segment.number != read.openings[place][1]:
                        break  # it was compacted
                    opened_at = opening_version(segment.snapshot)
                    if found is not None and not following and segment.number > read.openings[-1][1]:
                        read.openings.append((opened_at, segment.number))
                    if found is not None and opened_at > version:
                        break
                    found = segment
                    if following:
                        break
            except StoreFailed:
                await self._forget_compacted(read)
                if read.openings[0][0] <= version:
                    raise
                return None
        if found is None:
            await self._forget_compacted(read)
        return found

    async def _forget_compacted(self, read: JournalHistory) -> None:
        proofs = await self._journal.proofs()
        first = proofs[-1].segment_count if proofs else 0
        kept = openings_from(read.openings, first)
        if not kept:  # all that was known was compacted
            async with aclosing(self._journal.history(first)) as segments:
                async for segment in segments:
                    kept.append((opening_version(segment.snapshot), segment.number))
        read.openings = kept or read.openings[-1:]


def _no_version(version: int, first: int, last: int) -> Refused:
    return Refused(Refusal.NOT_FOUND, f"version {version} is not kept; allowed: {first} to {last}")
