"""The journal as one coordinator knows it: the last record that it wrote or read, and the run after that.

Several coordinators may share a journal. If another one has appended first, `append` raises `StoreConflict` and keeps
nothing. That is routine: `catch_up` reads and replays what the other one wrote, and the stimuli are handled again.
"""

import contextlib
from dataclasses import replace

from coordinator.machine.records import Replayed, encode_record, encode_snapshot, replay, replay_tail
from coordinator.machine.run import Run
from coordinator.machine.stimuli import Stamped
from coordinator.machine.views import document_of
from coordinator.publication import Published
from coordinator.store.journal import Journal
from state.documents import RunDocument
from state.errors import StoreConflict, StoreFailed

MAX_SEGMENT_RECORDS = 20_000
"""A longer segment is followed by another within the epoch, so that a start replays a bounded number of records."""


class RunJournal:
    """The journal and its run.

    Attributes:
        run: the run after the last known record.
        published: its published document.
    """

    def __init__(self, journal: Journal, found: Replayed, record_count: int) -> None:
        self._journal = journal
        self._sequence = found.sequence
        self._record_count = record_count
        self._is_segment_due = False
        self.run = found.run
        self.published = Published.of(found.document)

    @property
    def sequence(self) -> int:
        """Number of the last known record."""
        return self._sequence

    @classmethod
    async def load(cls, journal: Journal, *, is_restored: bool = False) -> "RunJournal | None":
        """Return the journal of a run that was started before, or None.

        Args:
            is_restored: the journal is a copy that may lack later segments.

        Raises:
            StoreFailed: the journal is damaged, or was written under other rules.
        """
        segment = await journal.load(is_restored=is_restored)
        return None if segment is None else cls(journal, replay(segment), len(segment.records))

    @classmethod
    async def begin(cls, journal: Journal, run: Run) -> "RunJournal":
        """Return the journal of a new run, after keeping its first snapshot.

        Raises:
            StoreConflict: another coordinator has begun the run.
            StoreFailed: the snapshot cannot be kept.
        """
        begun = cls(journal, Replayed(0, document_of(run, version=0), run), 0)
        await begun._open_segment()
        return begun

    async def append(self, run: Run, stimuli: tuple[Stamped, ...], *, ends_segment: bool) -> None:
        """Keep the stimuli that led from the last known run to `run`, in order.

        Args:
            ends_segment: whether a new segment is due after them.

        Raises:
            StoreConflict: another coordinator has appended first; nothing was kept.
            StoreFailed: they may not have been kept.
        """
        published, document = self.published, self._document_of(run)
        if document != published.document:
            published = Published.of(replace(document, version=document.version + 1))
        sequence = self._sequence + 1
        await self._journal.append(encode_record(sequence, published.version, published.sha256, stimuli))
        self._sequence, self.run, self.published = sequence, run, published
        self._record_count += 1
        self._is_segment_due |= ends_segment or self._record_count >= MAX_SEGMENT_RECORDS

    def _document_of(self, run: Run) -> RunDocument:
        """Return the document of a run that follows the last known one, in its version."""
        return document_of(run, self.published.version, (self.run, self.published.document))

    async def open_due_segment(self) -> None:
        """Open a new segment if one is due. It stays due if another coordinator has appended meanwhile.

        Raises:
            StoreFailed: it may not have been kept.
        """
        if self._is_segment_due:
            with contextlib.suppress(StoreConflict):
                await self._open_segment()
                self._is_segment_due, self._record_count = False, 0

    async def _open_segment(self) -> None:
        published = self.published
        snapshot = encode_snapshot(self._sequence, published.version, published.sha256, self.run)
        await self._journal.open_segment(snapshot)

    async def catch_up(self) -> bool:
        """Read what other coordinators have appended, and replay it; return whether there was any.

        Raises:
            StoreFailed: the journal is damaged, or was written under other rules; or it cannot be read now.
        """
        tail = await self._journal.tail(self._sequence)
        if tail is None:
            return await self._load_again()
        if not tail.records:
            return False
        found = replay_tail(Replayed(self._sequence, self.published.document, self.run), tail.records)
        self._is_segment_due &= tail.segment_records == self._record_count + len(tail.records)
        self._take(found, tail.segment_records)
        return True

    async def _load_again(self) -> bool:
        """Go on from the newest segment, because what is known is not in the journal, or not any more."""
        segment = await self._journal.load()
        if segment is None:
            raise StoreFailed("the journal is gone")
        found = replay(segment)
        self._is_segment_due = False
        is_news = found.sequence != self._sequence or found.document != self.published.document
        self._take(found, len(segment.records))
        return is_news

    def _take(self, found: Replayed, record_count: int) -> None:
        self._sequence, self._record_count, self.run = found.sequence, record_count, found.run
        if found.document != self.published.document:
            self.published = Published.of(found.document)
